"""Tell the part of an iteration that work ran in: operators by the trace's annotations, stacks by their frames.

Where several fit, the outermost part counts: what the data loader, or a hook in the backward pass, calls belongs to it.
But forward and backward that an optimizer's step calls as its closure are forward and backward: some trainers run
all of them so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import Phase
from eroica.summarize.marks import LOADER_PREFIX, STEP_PREFIX, is_backward_name
from eroica.summarize.sweep import Times, distinct, inside, unite
from eroica.trace.stacks import split_frame as split_frame_uncached
from eroica.trace.table import Category, EventTable

PHASES: tuple[Phase, ...] = ("other", "input", "optimizer", "backward", "forward")
_OTHER, _INPUT, _OPTIMIZER, _BACKWARD, _FORWARD = range(len(PHASES))
_LOADER_FILE = "torch/utils/data/dataloader.py"
#: In it: the next batch, and the beginning and the end of an iteration over the loader, with its processes.
_LOADS = ("__next__", "__iter__", "__del__", "_shutdown_workers")
_MODULE_FILES = ("torch/nn/modules/module.py", "torch/nn/parallel/distributed.py")
split_frame = lru_cache(maxsize=65536)(split_frame_uncached)
_ENGINE = ("_engine_run_backward", "run_backward")


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
    rows = np.flatnonzero(among & events.names_where([wanted(name) for name in events.strings]))
    return unite(events.start_ns[rows], events.end_ns[rows])


def _forward_by_position(time: Times, others: tuple[Times, ...], backward: Times) -> NDArray[np.int8]:
    """Forward is what has a backward pass as the next part."""
    begin = np.concatenate([*others, backward])
    is_backward = np.arange(len(begin)) >= len(begin) - len(backward)
    order = np.argsort(begin, kind="stable")
    following = np.append(is_backward[order], False)[np.searchsorted(begin[order], time, side="left")]
    return np.where(following, _FORWARD, _OTHER).astype(np.int8)


def stack_phase(stack: tuple[str, ...]) -> Phase:
    """Phase of a sampled stack, outermost frame first."""
    outside: Phase = "other"
    for frame in stack:
        function, file = split_frame(frame)
        name = function.rpartition(".")[2]
        if name in _LOADS and file == _LOADER_FILE:
            return "input"
        if file.startswith("torch/optim/") and name != "__init__":
            outside = "optimizer"  # unless it calls a closure
        if name.lstrip("_") in ("backward", "run_backward", "engine_run_backward") and _is_autograd(file):
            return "backward"
        if file in _MODULE_FILES and name in ("__call__", "_call_impl", "_wrapped_call_impl", "forward"):
            return "forward"
    return outside


def _is_autograd(file: str) -> bool:
    return file.startswith("torch/autograd/") or file == "torch/_tensor.py"


def is_engine_frame(frame: str) -> bool:
    """Return whether a frame waits for the C++ autograd engine."""
    function, file = split_frame(frame)
    return function.rpartition(".")[2] in _ENGINE and file.startswith("torch/autograd/")


def is_apply_frame(frame: str) -> bool:
    """Return whether a frame enters a user's `autograd.Function`."""
    function, file = split_frame(frame)
    return function.rpartition(".")[2] == "apply" and file == "torch/autograd/function.py"
