"""Tell the part of an iteration in which work ran, by PyTorch's own notes in a trace and by frames of stacks.

Where several fit, the outermost part counts: what the data loader, or a hook in the backward pass, calls belongs to it.
But forward and backward that an optimizer's step calls as its closure are forward and backward.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import Phase
from eroica.summarize.collectives import is_host_collective
from eroica.summarize.sweep import Times, distinct, inside, unite
from eroica.trace.stacks import split_frame as split_frame_uncached
from eroica.trace.table import Category, EventTable

Purpose = Literal["training", "inference", ""]
LOADER_PREFIX = "enumerate(DataLoader)#"
STEP_PREFIX = "Optimizer.step#"
ENGINE_PREFIX = "autograd::engine::"
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
_BACKWARD_NAME = re.compile(r"^[A-Za-z]\w*Backward\d*$")
_LEAST_SHARE = 0.2
PHASES: tuple[Phase, ...] = ("other", "input", "optimizer", "backward", "forward")
_OTHER, _INPUT, _OPTIMIZER, _BACKWARD, _FORWARD = range(len(PHASES))
_LOADER_FILE = "torch/utils/data/dataloader.py"
#: In it: the next batch, and the beginning and the end of an iteration over the loader, with its processes.
_LOADS = ("__next__", "__iter__", "__del__", "_shutdown_workers")
_MODULE_FILES = ("torch/nn/modules/module.py", "torch/nn/parallel/distributed.py")
split_frame = lru_cache(maxsize=65536)(split_frame_uncached)
_ENGINE = ("_engine_run_backward", "run_backward")
#: A call of the driver that lasts so long with an idle device sets something up.
_LONG_NS = 20_000_000
#: While the device works for a larger share of it, a call waits for the device.
_BUSY = 0.1
_WAITS = re.compile(r"Synchronize|Memcpy|Memset|memcpy|memset|StreamWait|EventQuery|StreamQuery|MemPrefetch")
#: Marks of torch (`dynamo_timed`, inductor's `CachingAutotuner`, CUPTI's "Lazy Function Loading", graph capture).
_MARK = re.compile(
    r"\(dynamo_timed\)|CachingAutotuner|autotun|benchmark_all_configs|Lazy Function Loading|_compile\.compile_inner"
    r"|capture_begin|CUDAGraph.*captur"
)
_MOST_NAMED = 3


def is_backward_name(name: str) -> bool:
    """Return whether an operator belongs to the backward pass by its name.

    Such is "AddmmBackward0"; traces of 2021 lack the engine's prefix.
    """
    return name.startswith(ENGINE_PREFIX) or _BACKWARD_NAME.match(name) is not None


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
    engine = events.named(is_backward_name) & chosen
    backward = np.isin(threads, np.unique(events.thread[engine]))
    order = np.lexsort((-counts, backward & enough, ~enough))
    return int(threads[order[0]])


def find_purpose(events: EventTable) -> Purpose:
    """Tell whether the recorded process trains or infers, as far as its own events show it.

    A backward pass or an optimizer means training. Without any of them, operators without any communication look like
    inference; a file that lacks operators, or holds collectives too, tells nothing.
    """
    host = events.named(
        lambda name: is_backward_name(name) or _OPTIMIZES.match(name), Category.OPERATOR, Category.ANNOTATION
    )
    if host.any() or events.named(_TRAINS.search, Category.KERNEL).any():
        return "training"
    operators = int((events.category == Category.OPERATOR).sum())
    talks = events.communication() | events.named(
        lambda name: is_host_collective(name) or name.startswith(("nccl:", "c10d::"))
    )
    return "inference" if operators >= _FEWEST_OPERATORS and not talks.any() else ""


def without_ranges(events: EventTable) -> EventTable:
    """Turn ranges around Python code from operators into annotations: sampled stacks tell that code and its caller.

    Args:
        events: In which torch calls such ranges operators.
    """
    is_range = events.named(_AROUND_PYTHON.search, Category.OPERATOR)
    if not is_range.any():
        return events
    return replace(events, category=np.where(is_range, np.int8(Category.ANNOTATION), events.category))


class Parts(NamedTuple):
    """Stretches in which a worker was in each part of an iteration, as united stretches (start, end).

    `steps` are those of the optimizer alone: gradients may be set to zero between forward and backward pass, too.
    """

    input: tuple[Times, Times]
    optimizer: tuple[Times, Times]
    forward: tuple[Times, Times]
    backward: tuple[Times, Times]
    steps: tuple[Times, Times]


def find_parts(events: EventTable, thread: int) -> Parts:
    """Parts of the iteration as the training thread went through them.

    Args:
        events: All events.
        thread: Kernel thread id of the training thread. The backward pass may run on the engine's own threads while it
            waits.
    """
    noted = annotated_parts(events, thread)
    backward = _spans(events, events.category == Category.OPERATOR, is_backward_name)
    notes = (events.thread == thread) & (events.category == Category.ANNOTATION)
    steps = _spans(events, notes, lambda name: name.startswith(STEP_PREFIX))
    optimizer = _outside_closures(noted["optimizer"], steps, backward)
    return Parts(noted["input"], optimizer, noted["forward"], backward, steps)


def _outside_closures(
    optimizer: tuple[Times, Times], steps: tuple[Times, Times], backward: tuple[Times, Times]
) -> tuple[Times, Times]:
    """Cut the optimizer's stretches to their parts outside of closures.

    Of a step in which a backward pass begins, only the time after that pass is the optimizer's.
    """
    first, last = (np.searchsorted(backward[0], edge) for edge in steps)
    closing = np.flatnonzero((last > first) & ~inside(steps[0], *backward))
    if not closing.size:
        return optimizer
    closures = steps[0][closing], np.minimum(backward[1][last[closing] - 1], steps[1][closing])
    edges = distinct(np.concatenate((*optimizer, *closures)))
    kept = inside(edges[:-1], *optimizer) & ~inside(edges[:-1], *closures)
    return unite(edges[:-1][kept], edges[1:][kept])


def phases_at(time: Times, parts: Parts) -> NDArray[np.int8]:
    """Phase at each moment of the training thread, as numbers into `PHASES`.

    Wrapped models annotate their forward pass. Without such an annotation, what runs before a backward pass and after
    the part before it (input, optimizer, another backward pass) is forward.
    """
    if len(parts.forward[0]):
        phase = np.full(len(time), _OTHER, dtype=np.int8)
        phase[inside(time, *parts.forward)] = _FORWARD
    else:
        phase = _forward_by_position(time, (parts.input[0], parts.steps[0]), parts.backward[0])
    phase[inside(time, *parts.backward)] = _BACKWARD
    phase[inside(time, *parts.optimizer)] = _OPTIMIZER
    phase[inside(time, *parts.input)] = _INPUT
    return phase


def phase_borders(parts: Parts) -> Times:
    """All moments at which the phase may change, rising."""
    return distinct(np.concatenate([side for spans in parts for side in spans]))


def annotated_parts(events: EventTable, thread: int) -> dict[Phase, tuple[Times, Times]]:
    """Find the time a thread spent in loader, wrapped model's forward pass and optimizer, from the trace's notes."""
    notes = (events.thread == thread) & (events.category == Category.ANNOTATION)
    optimizer = (STEP_PREFIX, "Optimizer.zero_grad#")
    return {
        "input": _spans(events, notes, lambda name: name.startswith(LOADER_PREFIX)),
        "optimizer": _spans(events, notes, lambda name: name.startswith(optimizer)),
        "forward": _spans(events, notes, lambda name: name.endswith(".forward")),
    }


def _spans(events: EventTable, among: NDArray[np.bool_], wanted: Callable[[str], bool]) -> tuple[Times, Times]:
    rows = np.flatnonzero(among & events.named(wanted))
    return unite(events.start_ns[rows], events.end_ns[rows])


def _forward_by_position(time: Times, others: tuple[Times, ...], backward: Times) -> NDArray[np.int8]:
    """Forward is what has a backward pass as the next part."""
    begin = np.concatenate([*others, backward])
    is_backward = np.arange(len(begin)) >= len(begin) - len(backward)
    order = np.argsort(begin, kind="stable")
    following = np.append(is_backward[order], False)[np.searchsorted(begin[order], time, side="left")]
    return np.where(following, _FORWARD, _OTHER).astype(np.int8)


def stack_phase(stack: tuple[str, ...]) -> Phase:
    """Return the phase of a sampled stack, outermost frame first: "input" below a loader's `__next__`, and so on."""
    outside: Phase = "other"
    for frame in stack:
        function, file = split_frame(frame)
        name = function.rpartition(".")[2]
        if name in _LOADS and file == _LOADER_FILE:
            return "input"
        if file.startswith("torch/optim/") and name != "__init__":
            outside = "optimizer"  # unless it calls a closure
        is_autograd = file.startswith("torch/autograd/") or file == "torch/_tensor.py"
        if is_autograd and name.lstrip("_") in ("backward", "run_backward", "engine_run_backward"):
            return "backward"
        if file in _MODULE_FILES and name in ("__call__", "_call_impl", "_wrapped_call_impl", "forward"):
            return "forward"
    return outside


def is_engine_frame(frame: str) -> bool:
    """Return whether a frame waits for the C++ autograd engine."""
    function, file = split_frame(frame)
    return function.rpartition(".")[2] in _ENGINE and file.startswith("torch/autograd/")


def is_apply_frame(frame: str) -> bool:
    """Return whether a frame enters a user's `autograd.Function`."""
    function, file = split_frame(frame)
    return function.rpartition(".")[2] == "apply" and file == "torch/autograd/function.py"


@dataclass(frozen=True, eq=False)
class StartUp:
    """Stretches in which a process was being set up.

    Attributes:
        start: int64 [K], rising.
        end: int64 [K].
        names: What took longest, with its nanoseconds.
    """

    start: Times
    end: Times
    names: tuple[tuple[str, int], ...] = ()

    def within(self, begin: int, end: int) -> int:
        """Nanoseconds of it between two moments."""
        return int(np.maximum(np.minimum(self.end, end) - np.maximum(self.start, begin), 0).sum())


NO_STARTUP = StartUp(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def find_startup(events: EventTable) -> StartUp:
    """Find what is done once."""
    length = events.end_ns - events.start_ns
    calls = np.flatnonzero((length >= _LONG_NS) & (events.category == Category.RUNTIME))
    waits = [_WAITS.search(events.name_of(row)) is not None for row in calls.tolist()]
    calls = calls[~np.array(waits, dtype=np.bool_)]
    calls = calls[_idle(events, calls)] if len(calls) else calls
    marked = np.flatnonzero(events.named(_MARK.search, Category.OPERATOR, Category.ANNOTATION) & (length > 0))
    rows = np.concatenate((calls, marked))
    if not len(rows):
        return NO_STARTUP
    total = np.bincount(events.name[rows], weights=length[rows], minlength=len(events.strings))
    longest = [int(name) for name in np.argsort(-total, kind="stable")[:_MOST_NAMED] if total[name] > 0]
    start, end = unite(events.start_ns[rows], events.end_ns[rows])
    return StartUp(start, end, tuple((events.strings[name], int(total[name])) for name in longest))


def _idle(events: EventTable, calls: NDArray[np.intp]) -> NDArray[np.bool_]:
    """During which calls the device had next to nothing to do. bool [calls]."""
    on_device = np.flatnonzero((events.category == Category.KERNEL) | (events.category == Category.MEMORY))
    busy = StartUp(*unite(events.start_ns[on_device], events.end_ns[on_device]))
    spans = zip(events.start_ns[calls].tolist(), events.end_ns[calls].tolist(), strict=True)
    return np.array([busy.within(begin, end) <= _BUSY * (end - begin) for begin, end in spans], dtype=np.bool_)
