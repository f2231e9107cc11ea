"""Sort a trace's events into layers that can be critical: operators, kernels, memory, collectives, collections.

Everything becomes a `Layer` of disjoint stretches; `critical` puts the layers in order and adds sampled Python.

With an accelerator its kernels are compute and the host's operators are none: they only launch. Without one, compute is
each moment's innermost operator on the training thread and on autograd threads, with these exceptions. Operators of
c10d only enqueue. Operators of the autograd engine and those without a library's name (`AddmmBackward0`, a user's
`autograd.Function`) wrap others and may run Python hooks: their own time is kept apart as `wrappers`, for Python that
was sampled inside comes before it.

A collective on a device is critical whenever nothing of a higher class runs; so are all where there is a device. Gloo's
threads work beside the training thread, which may go on: with Python that leaves no events, or asleep beside a device
that nobody sees. There an open collective costs something only if it is waited for, and such a wait shows: it ends when
the collective does. So time is cut at every sign of life of the training thread: an operator or note began or ended,
the collector ran, the kernel saw it run or wait for a timer, its stack waits for something else. Of each collective
only the stretch in which it ended can be a wait, or one shortly before that, where ends are noted late. That stretch
counts whole. (Who polls for it, with pauses, is taken for Python.)
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionKind, ThreadRole
from eroica.summarize.collectives import Execution, is_host_collective
from eroica.summarize.phases import ENGINE_PREFIX, PHASES, Parts, find_parts, is_backward_name, phases_at
from eroica.summarize.sweep import (
    Durations,
    Functions,
    Layer,
    Numbers,
    Times,
    distinct,
    empty_layer,
    first_come,
    inside,
    join_durations,
    nest,
    paint,
    stretches,
    unite,
    without_rows,
)
from eroica.trace.table import ALLOCATIONS, Category, EventTable

_OTHER_PHASE, _INPUT_PHASE, _BACKWARD_PHASE = (PHASES.index(name) for name in ("other", "input", "backward"))
_TRANSPORT = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "c10d_functional::")
#: Libraries whose waits sleep until another thread wakes them; others look again and again.
_ASLEEP_WHILE_WAITING = "gloo:"
_MOST_AUTOGRAD = 128
#: Modules of the standard library in which Python waits; a file of the user's has its folder before it.
_ELSEWHERE = re.compile(
    r" \((threading|queue|selectors|socket|ssl|subprocess|multiprocessing/(connection|queues|synchronize))\.py:\d+\)$"
)
#: Callers under which such a wait is a collective's all the same: of a process group that is written in Python.
_OF_A_GROUP = re.compile(
    r" \((?:.*/)?torch/distributed/(distributed_c10d|_functional_collectives|pipelining/\w+)\.py:\d+\)$"
)
#: Below these a schedule, or a group that pickles an object, runs code of the user's.
_OF_THE_USER = re.compile(r" \((?:.*/)?(torch/nn/modules/module|torch/autograd/\w+|pickle)\.py:\d+\)$")
#: A group's thread may lose its core between waking who waits and noting the end; then nothing but moments are left
#: between the last sign of life and the end.
_NOTED_LATE_NS = 10_000_000
_MOMENT_NS = 200_000
#: Such stretches that are looked back through, and how much longer than the own one the wait must be.
_LOOKED_BACK = 16
_FAR_LONGER = 4
#: Starts and ends of collectives of host threads, or of what of them was waited for. int64 [C] each.
Spans = tuple[Times, Times]
GARBAGE_COLLECTION = FunctionKey(kind="gc", name="garbage collection")


@dataclass(frozen=True, eq=False)
class Outline:
    """Facts of a trace.

    Attributes:
        training_thread: Kernel thread id.
        autograd_threads: The engine's own threads.
        has_accelerator: Device kernels were seen.
        parts: When the worker was in which part of its iterations.
    """

    training_thread: int
    autograd_threads: tuple[int, ...]
    has_accelerator: bool
    parts: Parts


def find_outline(events: EventTable, training_thread: int) -> Outline:
    """Outline of a trace."""
    return Outline(
        training_thread=training_thread,
        autograd_threads=_autograd_threads(events, training_thread),
        has_accelerator=bool((events.category == Category.KERNEL).any()),
        parts=find_parts(events, training_thread),
    )


@dataclass(frozen=True)
class Activity:
    """The layers of one worker.

    Attributes:
        compute: Kernels, or innermost operators.
        wrappers: Own time of operators that wrap others; empty with an accelerator.
        memory: Copies, fills and allocations of a device.
        collectives: `execution` numbers the executions given.
        collections_in_operators: Collector runs while an operator of the training thread was open.
        collections: All collector runs on the training thread.
        durations: All executions of operators and on the device.
    """

    compute: Layer
    wrappers: Layer
    memory: Layer
    collectives: Layer
    collections_in_operators: Layer
    collections: Layer
    durations: Durations


def gather_activity(
    events: EventTable,
    executions: Sequence[Execution],
    collections: tuple[Times, Times],
    outline: Outline,
    window: tuple[int, int],
    functions: Functions,
    signs: tuple[Times, Times] | None = None,
) -> Activity:
    """Sort a worker's events into layers.

    Args:
        events: The trace.
        executions: Collectives, in order of start.
        collections: Starts and ends of the collector's runs on the training thread, wall clock.
        outline: Of it.
        window: Start and end, wall-clock nanoseconds.
        functions: Takes the functions found.
        signs: Moments at which the training thread was seen to wait for something else, and at which the kernel showed
            it awake: they tell collectives of host threads that it waits for from those that it goes on beside. None if
            nothing was sampled; then all are waited for.
    """
    spans: Spans = (
        np.array([one.start_ns for one in executions], dtype=np.int64),
        np.array([one.end_ns for one in executions], dtype=np.int64),
    )
    if outline.has_accelerator:
        compute, memory, durations = _device(events, outline, window, functions)
        wrappers = open_operators = empty_layer()
    else:
        compute, wrappers, open_operators, durations = _operators(events, outline, window, functions)
        memory = empty_layer()
        if signs is not None:
            busy = unite(
                *(np.concatenate(both) for both in zip((compute.start, compute.end), collections, strict=True))
            )
            active = np.concatenate((_active(events, outline, {one.name for one in executions}), *collections))
            elsewhere, awake = signs
            if not all(one.name.startswith(_ASLEEP_WHILE_WAITING) for one in executions):
                awake = awake[:0]
            spans = find_waits(spans, active, busy, elsewhere, awake, window)
    runs, inner = _collections(collections, open_operators, window, functions)
    return Activity(
        compute=compute,
        wrappers=wrappers,
        memory=memory,
        collectives=_collectives(executions, spans, functions),
        collections_in_operators=inner,
        collections=runs,
        durations=durations,
    )


def _autograd_threads(events: EventTable, training_thread: int) -> tuple[int, ...]:
    """Threads other than the training one that run backward passes, the busiest ones.

    In 2021 the engine left no notes of its own.
    """
    engine = events.named(lambda name: name.startswith(ENGINE_PREFIX), Category.OPERATOR)
    if not engine.any():
        engine = events.named(is_backward_name, Category.OPERATOR)
    others = engine & (events.thread != training_thread) & (events.thread != -1)
    threads, counts = np.unique(events.thread[others], return_counts=True)
    busiest = threads[np.argsort(-counts, kind="stable")[:_MOST_AUTOGRAD]]
    return tuple(sorted(busiest.tolist()))


# --- operators on the host ---


def is_transport(name: str) -> bool:
    """Return whether an operator only hands work to a process group, or waits for it."""
    return name.startswith(_TRANSPORT)


def is_wrapper(name: str) -> bool:
    """Return whether an operator wraps others and may run Python of the user."""
    return "::" not in name or name.startswith(("autograd::", "torch::autograd::"))


def _operators(
    events: EventTable, outline: Outline, window: tuple[int, int], functions: Functions
) -> tuple[Layer, Layer, Layer, Durations]:
    """Compute, wrappers, everything open on the training thread; the training thread comes before the engine's."""
    threads = (outline.training_thread, *outline.autograd_threads)
    found = [_thread_operators(events, thread, outline, window, functions) for thread in threads]
    cuts = np.array(window, dtype=np.int64)
    compute = _overlay([layers[0] for layers in found], cuts)
    wrappers = _overlay([layers[1] for layers in found], cuts)
    return compute, wrappers, found[0][2], join_durations([layers[3] for layers in found])


def _overlay(layers: list[Layer], cuts: Times) -> Layer:
    if len(layers) == 1:
        return layers[0]
    painted = paint(layers, cuts)
    return painted.where(painted.function >= 0)


def _thread_operators(
    events: EventTable, thread: int, outline: Outline, window: tuple[int, int], functions: Functions
) -> tuple[Layer, Layer, Layer, Durations]:
    """One thread's operators: compute, wrappers, both, and their self times."""
    chosen = (events.category == Category.OPERATOR) & (events.thread == thread)
    chosen &= (events.start_ns < window[1]) & (events.end_ns > window[0]) & (events.start_ns < events.end_ns)
    rows = np.flatnonzero(chosen)
    if not len(rows):
        nothing = empty_layer()
        return nothing, nothing, nothing, join_durations(())
    is_training = thread == outline.training_thread
    phase = np.full(len(rows), _BACKWARD_PHASE, dtype=np.int8)
    if is_training:
        phase = phases_at(events.start_ns[rows], outline.parts)
    function = _numbers(functions, "compute", "training" if is_training else "autograd", events, rows, phase)
    low, high, leaf = nest(events.start_ns[rows], events.end_ns[rows]).leaves()
    inner = Layer(low, high, function[leaf], leaf.astype(np.int32)).within(*window)
    leaf = inner.execution.astype(np.int64)
    segments = inner._replace(execution=rows[leaf].astype(np.int32))
    transport = np.array([is_transport(name) for name in events.strings], dtype=np.bool_)
    wrapping = np.array([is_wrapper(name) for name in events.strings], dtype=np.bool_)
    name = events.name[rows[leaf]]
    length = (segments.end - segments.start).astype(np.float64)
    own = np.bincount(leaf, weights=length, minlength=len(rows)).astype(np.int64)
    counted = ~transport[events.name[rows]]
    return (
        segments.where(~transport[name] & ~wrapping[name]),
        segments.where(~transport[name] & wrapping[name]),
        segments.where(~transport[name]),
        Durations(function[counted], own[counted], rows[counted].astype(np.int32)),
    )


def _numbers(
    functions: Functions,
    kind: FunctionKind,
    thread: ThreadRole,
    events: EventTable,
    rows: NDArray[np.int64],
    phase: NDArray[np.int8],
) -> Numbers:
    """Function number of each row: its name and phase."""

    def key_of(code: int) -> FunctionKey:
        name, at = divmod(code, len(PHASES))
        return FunctionKey(kind=kind, name=events.strings[name][:200], thread=thread, phase=PHASES[at])

    return functions.numbers(events.name[rows].astype(np.int64) * len(PHASES) + phase, key_of)


# --- device ---


def _device(
    events: EventTable, outline: Outline, window: tuple[int, int], functions: Functions
) -> tuple[Layer, Layer, Durations]:
    kernels = np.flatnonzero((events.category == Category.KERNEL) & ~events.communication())
    memory = np.flatnonzero((events.category == Category.MEMORY) | is_allocation(events))
    phase = launch_phases(events, outline)
    compute_layer, compute_durations = _streams(events, kernels, "compute", phase, window, functions)
    memory_layer, memory_durations = _streams(events, memory, "memory", phase, window, functions)
    return compute_layer, memory_layer, join_durations((compute_durations, memory_durations))


def is_allocation(events: EventTable) -> NDArray[np.bool_]:
    """Return which events are calls that allocate or free memory of the device. bool [E]."""
    return events.named(lambda name: name.startswith(ALLOCATIONS), Category.RUNTIME)


def launches_of(events: EventTable, outline: Outline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of what runs on a device, and of the calls of the host's threads that launched it; what is known of these.

    Returns:
        As many of both. int64 [n] each.
    """
    if not len(events.link):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    linked = events.link >= 0
    hosts = np.isin(events.thread, (outline.training_thread, *outline.autograd_threads))
    calls = np.flatnonzero(linked & hosts & (events.category == Category.RUNTIME))
    work = np.flatnonzero(linked & ((events.category == Category.KERNEL) | (events.category == Category.MEMORY)))
    calls = calls[np.argsort(events.link[calls], kind="stable")]
    place = np.searchsorted(events.link[calls], events.link[work])
    inner = place < len(calls)
    work, call = work[inner], calls[place[inner]]
    known = events.link[call] == events.link[work]
    return work[known], call[known]


def launch_phases(events: EventTable, outline: Outline) -> NDArray[np.int8]:
    """Find the part of the iteration in which the host launched each device event, as numbers into `PHASES`. int8 [E].

    "other" where the trace does not tell, and for what is launched while a batch is loaded: it runs beside that.
    """
    phase = np.full(len(events), _OTHER_PHASE, dtype=np.int8)
    work, call = launches_of(events, outline)
    launched = phases_at(events.start_ns[call], outline.parts)
    launched[events.thread[call] != outline.training_thread] = _BACKWARD_PHASE
    launched[launched == _INPUT_PHASE] = _OTHER_PHASE
    phase[work] = launched
    return phase


def _streams(
    events: EventTable,
    rows: NDArray[np.int64],
    kind: FunctionKind,
    phase_E: NDArray[np.int8],
    window: tuple[int, int],
    functions: Functions,
) -> tuple[Layer, Durations]:
    """Device events as a layer; of several streams the kernel that started first has the moment."""
    start, end = np.maximum(events.start_ns[rows], window[0]), np.minimum(events.end_ns[rows], window[1])
    keep = start < end
    rows, start, end = rows[keep], start[keep], end[keep]
    function = _numbers(functions, kind, "device", events, rows, phase_E[rows])
    low, high, which = first_come(start, end)
    row = rows.astype(np.int32)
    return Layer(low, high, function[which], row[which]), Durations(function, end - start, row)


# --- collectives and collections ---


def collective_durations(
    executions: Sequence[Execution], runs: tuple[Times, Times], window: tuple[int, int], functions: Functions
) -> Durations:
    """Executions of collectives and runs of the collector in the window, for counting."""
    function = [functions.number(_collective_key(one)) for one in executions]
    length = [one.end_ns - one.start_ns for one in executions]
    low, high = np.maximum(runs[0], window[0]), np.minimum(runs[1], window[1])
    collected = (high - low)[low < high].tolist()
    if collected:
        function += [functions.number(GARBAGE_COLLECTION)] * len(collected)
    return without_rows(np.array(function, dtype=np.int32), np.array(length + collected, dtype=np.int64))


def _collective_key(one: Execution) -> FunctionKey:
    return FunctionKey(kind="collective", name=one.name[:200], thread="collective", group=one.group)


def _active(events: EventTable, outline: Outline, collectives: Container[str]) -> Times:
    """Find moments at which the training thread was certainly active: its operators and notes began or ended.

    Args:
        events: The trace.
        outline: Of it.
        collectives: Names of those that threads of the host run.

    It may wait within operators that hand work to a group, so that only their beginnings count; collectives that it
    runs itself (`send`) may be over long after it went on.
    """
    host = events.named(
        lambda name: name not in collectives and not is_host_collective(name), Category.OPERATOR, Category.ANNOTATION
    )
    host &= (events.thread == outline.training_thread) & (events.start_ns < events.end_ns)
    return np.concatenate((events.start_ns[host], events.end_ns[host & ~events.named(is_transport)]))


def _collectives(executions: Sequence[Execution], spans: Spans, functions: Functions) -> Layer:
    """Lay out collectives as a layer; of several at once, the one that is waited for first has the moment."""
    function = np.array([functions.number(_collective_key(one)) for one in executions], dtype=np.int32)
    start, end = spans
    order = np.argsort(start, kind="stable")
    order = order[start[order] < end[order]]
    low, high, which = first_come(start[order], end[order])
    return Layer(low, high, function[order[which]], order[which].astype(np.int32))


def _collections(
    runs: tuple[Times, Times], open_operators: Layer, window: tuple[int, int], functions: Functions
) -> tuple[Layer, Layer]:
    """Collector runs, and those parts of them that interrupt an operator."""
    low, high = np.maximum(runs[0], window[0]), np.minimum(runs[1], window[1])
    kept = low < high
    if not kept.any():
        return empty_layer(), empty_layer()
    number = functions.number(GARBAGE_COLLECTION)
    start, end = unite(low[kept], high[kept])
    covered = unite(open_operators.start, open_operators.end)
    edges = distinct(np.concatenate((start, end, *covered)))
    both = inside(edges[:-1], start, end) & inside(edges[:-1], *covered)
    return stretches(start, end, number), stretches(edges[:-1][both], edges[1:][both], number)


# --- waits ---


def waits_elsewhere(stack: Sequence[str]) -> bool:
    """Return whether a stack waits in the standard library for a thread, queue, process or socket, not a collective.

    A process group that is written in Python waits there for its collectives.
    """
    if not stack or _ELSEWHERE.search(stack[-1]) is None:
        return False
    for frame in reversed(stack):
        if _OF_THE_USER.search(frame):
            return True
        if _OF_A_GROUP.search(frame):
            return False
    return True


def find_waits(
    spans: Spans,
    active: Times,
    busy: tuple[Times, Times],
    elsewhere: Times,
    awake: Times,
    window: tuple[int, int],
) -> Spans:
    """Find the part of each collective that the training thread waited for; empty (end = start) where there is none.

    Args:
        spans: Collectives, clipped to the window.
        active: Further signs of life of the training thread, in any order. int64 [M].
        busy: When it computed or collected garbage; disjoint, in order.
        elsewhere: Moments at which its stack showed it to wait for something else (`waits_elsewhere`). int64 [N].
        awake: Moments at which the kernel showed it to wait for no other thread; none where states are not known.
            int64 [K].
        window: Start and end.
    """
    signs = np.concatenate((active, elsewhere, awake))
    cuts = distinct(np.concatenate((window, signs[(signs > window[0]) & (signs < window[1])])).astype(np.int64))
    low, high = _stretches(spans, cuts, busy, len(awake) > 0)
    start = np.maximum(spans[0], low)
    return start, np.maximum(np.minimum(spans[1], high), start)


def _stretches(spans: Spans, cuts: Times, busy: tuple[Times, Times], knows_states: bool) -> Spans:
    """Find the signs of life between which each collective ended.

    A thread that waits for a future (DistributedDataParallel) goes on before the end is noted. Where the states of the
    thread are known, a stretch far longer than the own one (than a moment, if the thread computed in that) is no
    Python, and so the wait.
    """
    begin, end = spans
    is_busy = inside(cuts[:-1] + np.diff(cuts) // 2, *busy)
    place = np.clip(np.searchsorted(cuts, end, side="left") - 1, 0, len(cuts) - 2)
    own = np.minimum(end, cuts[place + 1]) - np.maximum(begin, cuts[place])
    free = np.flatnonzero(~is_busy & (np.diff(cuts) > _MOMENT_NS))
    if len(free):
        last = np.searchsorted(free, place, side="left") - 1
        best, most = place, np.where(is_busy[place], 0, np.maximum(own, 0)) * (_FAR_LONGER if knows_states else 1)
        may_be_late = is_busy[place] | (own <= _MOMENT_NS) | knows_states
        for back in range(_LOOKED_BACK if knows_states else 1):
            before = free[np.maximum(last - back, 0)]
            waited = np.minimum(end, cuts[before + 1]) - np.maximum(begin, cuts[before])
            fits = (last >= back) & (waited > _MOMENT_NS) & (cuts[before + 1] >= end - _NOTED_LATE_NS)
            fits &= may_be_late & (waited > most)
            best, most = np.where(fits, before, best), np.where(fits, waited, most)
        place = best
    return cuts[place], cuts[place + 1]
