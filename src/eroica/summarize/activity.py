"""What of the trace can be critical: operators, device kernels, memory operations, collectives, collector runs.

Everything becomes a `Layer` of disjoint stretches; `critical` puts the layers in order and adds sampled Python.

With an accelerator its kernels are compute and the host's operators are none: they only launch. Without one, compute is
each moment's innermost operator on the training thread and on autograd threads, with these exceptions. Operators of
c10d only enqueue. Operators of the autograd engine and those without a library's name (`AddmmBackward0`, a user's
`autograd.Function`) wrap others and may run Python hooks: their own time is kept apart as `wrappers`, for Python that
was sampled inside comes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionKind, ThreadRole
from eroica.summarize.collectives import Execution
from eroica.summarize.functions import Functions
from eroica.summarize.phases import PHASES, operator_phases
from eroica.summarize.sweep import Layer, Times, distinct, empty_layer, first_come, inside, leaf_segments, paint, unite
from eroica.trace.kineto import is_collective_kernel
from eroica.trace.table import Category, EventTable

_ENGINE = "autograd::engine::evaluate_function"
_BACKWARD_PHASE = PHASES.index("backward")
_ALLOCATIONS = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "hipMalloc", "hipFree", "hipHostMalloc")
GARBAGE_COLLECTION = FunctionKey(kind="gc", name="garbage collection")


@dataclass(frozen=True)
class Durations:
    """Executions for counting: which function, how long (an operator: its self time). P of them.

    Attributes:
        function: int32 [P].
        length_ns: int64 [P].
    """

    function: NDArray[np.int32]
    length_ns: NDArray[np.int64]


@dataclass(frozen=True)
class Activity:
    """The layers of one worker.

    Attributes:
        has_accelerator: Device kernels were seen.
        compute: Kernels, or innermost operators.
        wrappers: Own time of operators that wrap others; empty with an accelerator.
        memory: Copies, fills and allocations of a device.
        collectives: `execution` numbers the executions given.
        collections_in_operators: Collector runs while an operator of the training thread was open.
        collections: All collector runs on the training thread.
        autograd_threads: Kernel thread ids of the engine's own threads.
        durations: All executions.
    """

    has_accelerator: bool
    compute: Layer
    wrappers: Layer
    memory: Layer
    collectives: Layer
    collections_in_operators: Layer
    collections: Layer
    autograd_threads: tuple[int, ...]
    durations: Durations


def gather_activity(
    events: EventTable,
    executions: Sequence[Execution],
    collections: tuple[Times, Times],
    training_thread: int,
    window: tuple[int, int],
    functions: Functions,
) -> Activity:
    """Sort a worker's events into layers.

    Args:
        events: The trace.
        executions: Collectives, in order of start.
        collections: Starts and ends of the collector's runs on the training thread, wall clock.
        training_thread: Kernel thread id.
        window: Start and end, wall-clock nanoseconds.
        functions: Takes the functions found.
    """
    kernels = np.flatnonzero(events.category == Category.KERNEL)
    autograd = _autograd_threads(events, training_thread)
    if len(kernels):
        compute, memory, parts = _device(events, kernels, window, functions)
        wrappers = open_operators = empty_layer()
    else:
        compute, wrappers, open_operators, parts = _operators(events, training_thread, autograd, window, functions)
        memory = empty_layer()
    collective, collective_durations = _collectives(executions, functions)
    runs, inner, run_durations = _collections(collections, open_operators, window, functions)
    return Activity(
        has_accelerator=bool(len(kernels)),
        compute=compute,
        wrappers=wrappers,
        memory=memory,
        collectives=collective,
        collections_in_operators=inner,
        collections=runs,
        autograd_threads=autograd,
        durations=_concatenate([*parts, collective_durations, run_durations]),
    )


def _concatenate(parts: Sequence[Durations]) -> Durations:
    return Durations(
        np.concatenate([part.function for part in parts]).astype(np.int32),
        np.concatenate([part.length_ns for part in parts]).astype(np.int64),
    )


def _autograd_threads(events: EventTable, training_thread: int) -> tuple[int, ...]:
    engine = events.names_where([name.startswith(_ENGINE) for name in events.strings])
    threads = np.unique(events.thread[engine & (events.category == Category.OPERATOR)]).tolist()
    return tuple(thread for thread in threads if thread not in (training_thread, -1))


# --- operators on the host ---


def is_transport(name: str) -> bool:
    """Whether an operator only hands work to a process group."""
    return name.startswith("c10d::")


def is_wrapper(name: str) -> bool:
    """Whether an operator wraps others and may run Python of the user."""
    return "::" not in name or name.startswith(("autograd::", "torch::autograd::"))


def _operators(
    events: EventTable, training_thread: int, autograd: Sequence[int], window: tuple[int, int], functions: Functions
) -> tuple[Layer, Layer, Layer, list[Durations]]:
    """Compute, wrappers, everything open on the training thread; the training thread comes before the engine's."""
    found = [_thread_operators(events, training_thread, training_thread, window, functions)]
    found += [_thread_operators(events, thread, training_thread, window, functions) for thread in autograd]
    cuts = np.array(window, dtype=np.int64)
    compute = _overlay([layers[0] for layers in found], cuts)
    wrappers = _overlay([layers[1] for layers in found], cuts)
    return compute, wrappers, found[0][2], [layers[3] for layers in found]


def _overlay(layers: list[Layer], cuts: Times) -> Layer:
    if len(layers) == 1:
        return layers[0]
    painted = paint(layers, cuts)
    return painted.where(painted.function >= 0)


def _thread_operators(
    events: EventTable, thread: int, training_thread: int, window: tuple[int, int], functions: Functions
) -> tuple[Layer, Layer, Layer, Durations]:
    """One thread's operators: compute, wrappers, both, and their self times."""
    chosen = (events.category == Category.OPERATOR) & (events.thread == thread)
    chosen &= (events.start_ns < window[1]) & (events.end_ns > window[0]) & (events.start_ns < events.end_ns)
    rows = np.flatnonzero(chosen)
    start = np.maximum(events.start_ns[rows], window[0])
    end = np.minimum(events.end_ns[rows], window[1])
    order = np.lexsort((np.arange(len(rows)), -end, start))
    rows, start, end = rows[order], start[order], end[order]
    function = _operator_functions(events, rows, thread, training_thread, functions)
    low, high, leaf = leaf_segments(start, end)
    segments = Layer(low, high, function[leaf], rows[leaf].astype(np.int32))
    transport = np.array([is_transport(name) for name in events.strings], dtype=np.bool_)
    wrapping = np.array([is_wrapper(name) for name in events.strings], dtype=np.bool_)
    name = events.name[rows[leaf]]
    own = np.bincount(leaf, weights=high - low, minlength=len(rows)).astype(np.int64)
    counted = ~transport[events.name[rows]] if len(rows) else np.zeros(0, dtype=np.bool_)
    if not len(rows):
        nothing = empty_layer()
        return nothing, nothing, nothing, Durations(np.empty(0, np.int32), np.empty(0, np.int64))
    return (
        segments.where(~transport[name] & ~wrapping[name]),
        segments.where(~transport[name] & wrapping[name]),
        segments.where(~transport[name]),
        Durations(function[counted], own[counted]),
    )


def _operator_functions(
    events: EventTable, rows: NDArray[np.int64], thread: int, training_thread: int, functions: Functions
) -> NDArray[np.int32]:
    """Function number of each operator: its name and phase."""
    if thread == training_thread:
        phase, role = operator_phases(events, thread, rows), "training"
    else:
        phase, role = np.full(len(rows), _BACKWARD_PHASE, dtype=np.int8), "autograd"
    codes, inverse = np.unique(events.name[rows].astype(np.int64) * len(PHASES) + phase, return_inverse=True)
    numbers = [
        functions.number(_key("compute", events.strings[code // len(PHASES)], role, code % len(PHASES)))
        for code in codes.tolist()
    ]
    return np.array(numbers, dtype=np.int32)[inverse] if numbers else np.empty(0, dtype=np.int32)


def _key(kind: FunctionKind, name: str, thread: str, phase: int = 0) -> FunctionKey:
    role: ThreadRole = "autograd" if thread == "autograd" else "device" if thread == "device" else "training"
    return FunctionKey(kind=kind, name=name[:200], thread=role, phase=PHASES[phase])


# --- device ---


def _device(
    events: EventTable, kernels: NDArray[np.int64], window: tuple[int, int], functions: Functions
) -> tuple[Layer, Layer, list[Durations]]:
    collective = np.array([is_collective_kernel(name) for name in events.strings], dtype=np.bool_)
    kernels = kernels[~collective[events.name[kernels]]]
    allocates = events.names_where([name.startswith(_ALLOCATIONS) for name in events.strings])
    memory = np.flatnonzero((events.category == Category.MEMORY) | (allocates & (events.category == Category.RUNTIME)))
    compute_layer, compute_durations = _streams(events, kernels, "compute", window, functions)
    memory_layer, memory_durations = _streams(events, memory, "memory", window, functions)
    return compute_layer, memory_layer, [compute_durations, memory_durations]


def _streams(
    events: EventTable, rows: NDArray[np.int64], kind: FunctionKind, window: tuple[int, int], functions: Functions
) -> tuple[Layer, Durations]:
    """Device events as a layer; of several streams the kernel that started first has the moment."""
    start, end = np.maximum(events.start_ns[rows], window[0]), np.minimum(events.end_ns[rows], window[1])
    keep = start < end
    rows, start, end = rows[keep], start[keep], end[keep]
    codes, inverse = np.unique(events.name[rows], return_inverse=True)
    numbers = [functions.number(_key(kind, events.strings[code], "device")) for code in codes.tolist()]
    function = np.array(numbers, dtype=np.int32)[inverse] if numbers else np.empty(0, dtype=np.int32)
    low, high, which = first_come(start, end)
    return Layer(low, high, function[which], rows[which].astype(np.int32)), Durations(function, end - start)


# --- collectives and collections ---


def _collectives(executions: Sequence[Execution], functions: Functions) -> tuple[Layer, Durations]:
    start = np.array([one.start_ns for one in executions], dtype=np.int64)
    end = np.array([one.end_ns for one in executions], dtype=np.int64)
    numbers = [
        functions.number(FunctionKey(kind="collective", name=one.name[:200], thread="collective", group=one.group))
        for one in executions
    ]
    function = np.array(numbers, dtype=np.int32)
    low, high, which = first_come(start, end)
    return Layer(low, high, function[which], which.astype(np.int32)), Durations(function, end - start)


def _collections(
    runs: tuple[Times, Times], open_operators: Layer, window: tuple[int, int], functions: Functions
) -> tuple[Layer, Layer, Durations]:
    """Collector runs, those parts of them that interrupt an operator, and their lengths."""
    low, high = np.maximum(runs[0], window[0]), np.minimum(runs[1], window[1])
    kept = low < high
    if not kept.any():
        return empty_layer(), empty_layer(), Durations(np.empty(0, np.int32), np.empty(0, np.int64))
    number = functions.number(GARBAGE_COLLECTION)
    start, end = unite(low[kept], high[kept])
    layer = _constant(start, end, number)
    covered = unite(open_operators.start, open_operators.end)
    edges = distinct(np.concatenate((start, end, *covered)))
    both = inside(edges[:-1], start, end) & inside(edges[:-1], *covered)
    inner = _constant(edges[:-1][both], edges[1:][both], number)
    return layer, inner, Durations(np.full(int(kept.sum()), number, dtype=np.int32), (high - low)[kept])


def _constant(start: Times, end: Times, function: int) -> Layer:
    return Layer(start, end, np.full(len(start), function, np.int32), np.full(len(start), -1, np.int32))
