"""Recognize PyTorch's own notes in a trace, and the thread they belong to."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eroica.summarize.collectives import is_host_collective
from eroica.trace.table import Category, EventTable

Purpose = Literal["training", "inference", ""]
LOADER_PREFIX = "enumerate(DataLoader)#"
STEP_PREFIX = "Optimizer.step#"
ENGINE_PREFIX = "autograd::engine::"
#: Marks that serving loops put around one batch: vLLM ("execute_context_1(8)_generation_4(4)", "gpu_model_runner:
#: forward"), SGLang ("step[DECODE bs=4]", "scheduler.run_batch"), TensorRT-LLM ("[Executor] _forward_step 7: ...").
_BATCH = re.compile(
    r"^(execute_(\d+_)?(new_\d+_cached|context)_\d+.*|execute_model|gpu_model_runner: forward|step\[[A-Z]+ bs=\d+.*|"
    r"scheduler\.run_batch|\[Executor\] _forward_step.*)$"
)
#: What differs from one such mark to the next.
_KIND = re.compile(r"\d+|[(\[:].*")
#: Operators of optimizers, which run without a mark where training code calls them by itself.
_OPTIMIZES = re.compile(r"^aten::_(fused|foreach)_(adam|adamw|sgd|adagrad|lerp|addcdiv)|^Optimizer\.|^aten::_amp_")
#: Kernels that only a training step runs.
_TRAINS = re.compile(
    r"backward|bwd|dgrad|wgrad|multi_tensor_apply|fused_?adam|adam_?w?_?kernel|Optimizer", re.IGNORECASE
)
#: Ranges that torch puts around Python of its own: the compiler's (`torch._dynamo.utils.dynamo_timed`), and calls of a
#: dispatch mode (FakeTensorMode and the like).
_AROUND_PYTHON = re.compile(r" \(dynamo_timed\)$|^PythonDispatchMode$")
_FEWEST_OPERATORS = 4
_BACKWARD = re.compile(r"^[A-Za-z]\w*Backward\d*$")
_LEAST_SHARE = 0.2


def is_backward_name(name: str) -> bool:
    """Return whether an operator belongs to the backward pass by its name.

    Such is "AddmmBackward0"; traces of 2021 lack the engine's prefix.
    """
    return name.startswith(ENGINE_PREFIX) or _BACKWARD.match(name) is not None


def find_training_thread(events: EventTable) -> int:
    """The thread with most operators, or with most launches where there are none.

    The main thread (that has the number of its process) is preferred, then threads that run no backward pass only.
    """
    for categories in ((Category.OPERATOR,), (Category.PYTHON, Category.ANNOTATION), (Category.RUNTIME,)):
        chosen = np.isin(events.category, [int(one) for one in categories])
        threads, counts = np.unique(events.thread[chosen], return_counts=True)
        if len(threads):
            break
    else:
        return -1
    enough = counts >= _LEAST_SHARE * counts.max()
    main = threads[enough & (threads == events.header.process_id)]
    if len(main):
        return int(main[0])
    engine = events.names_where([is_backward_name(name) for name in events.strings]) & chosen
    backward = np.isin(threads, np.unique(events.thread[engine]))
    order = np.lexsort((-counts, backward & enough, ~enough))
    return int(threads[order[0]])


def batch_mark(name: str) -> str:
    """The kind of mark that a serving loop puts around each batch, "" for other names."""
    found = _BATCH.match(name)
    return _KIND.sub("", name.removeprefix("[")) if found is not None else ""


def of_training(events: EventTable) -> NDArray[np.bool_]:
    """Return which events occur in training only: backward pass, optimizer, and their kernels. bool [E]."""
    host = [is_backward_name(name) or _OPTIMIZES.match(name) is not None for name in events.strings]
    device = [_TRAINS.search(name) is not None for name in events.strings]
    on_host = (events.category == Category.OPERATOR) | (events.category == Category.ANNOTATION)
    found: NDArray[np.bool_] = events.names_where(host) & on_host
    if any(device):
        found |= events.names_where(device) & (events.category == Category.KERNEL)
    return found


def find_purpose(events: EventTable) -> Purpose:
    """Tell whether the recorded process trains or infers, as far as its own events show it.

    A backward pass or an optimizer means training. Without any of them, operators without any communication, or the
    marks of a serving loop, look like inference; a file that lacks operators, or holds collectives too, tells nothing.
    """
    used = np.flatnonzero(np.bincount(events.name, minlength=len(events.strings))).tolist()
    names = [events.strings[number] for number in used]
    if of_training(events).any():
        return "training"
    if any(batch_mark(name) for name in names):
        return "inference"
    operators = int((events.category == Category.OPERATOR).sum())
    talks = bool(events.communication()[used].any()) if used else False
    hosts = any(is_host_collective(name) or name.startswith(("nccl:", "c10d::")) for name in names)
    return "inference" if operators >= _FEWEST_OPERATORS and not (talks or hosts) else ""


def without_ranges(events: EventTable) -> EventTable:
    """Turn ranges around Python code from operators into annotations: sampled stacks tell that code and its caller.

    Args:
        events: In which torch calls such ranges operators.
    """
    is_range = events.names_where([_AROUND_PYTHON.search(name) is not None for name in events.strings])
    is_range &= events.category == Category.OPERATOR
    if not is_range.any():
        return events
    return replace(events, category=np.where(is_range, np.int8(Category.ANNOTATION), events.category))
