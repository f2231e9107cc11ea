"""Explain the moments in which the device idles by the host's own events.

In recorded traces, gaps of the device are explained by the innermost event of the training thread (an operator, a call
of the driver, a note), else by one of the autograd engine's threads. Without an accelerator only the own time of notes
is left. The own time of the loader's note is the loader's Python.

Eager code launches half of its kernels within 50 microseconds of the one before, 90 % within 140 (recorded, PyTorch
2.11, H100). A faster device idles in between. Stacks sampled there show whatever module launches, which is no fault.

While the host waits for the device (`find_syncs`), it launches nothing, so the device idles until the next launch. At
most as much of that idle time is the wait's fault as the host has waited.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import LAUNCHING, FunctionKey, Synchronization
from eroica.model.series import encode_series
from eroica.summarize.activity import Durations, Outline, is_allocation, join_durations, launches_of
from eroica.summarize.phases import LOADER_PREFIX, PHASES, phase_borders, phases_at
from eroica.summarize.sampled import ThreadSamples
from eroica.summarize.sweep import (
    Functions,
    Layer,
    Times,
    distinct,
    distinct_codes,
    first_come,
    inside,
    leaf_segments,
    rows_by_thread,
    split_at,
    unite,
)
from eroica.trace.schema import ALL_LAUNCHES, Category
from eroica.trace.table import EventTable

_STEP = "ProfilerStep"
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_BACKWARD = PHASES.index("backward")
#: The time before a launch that belongs to it: operators, their dispatch, the module that calls them.
_REACH_NS = 100_000
#: The same where every Python call was traced, which makes a host several times as slow.
_TRACED_REACH_NS = 400_000
#: A sample so far from a launch says nothing of it; a call that takes so long waits.
_FAR_NS, _LASTS_NS = 20_000_000, 1_000_000
#: Calls of drivers that return when the device, a stream or an event is done; plain copies wait, asynchronous ones to
#: pageable memory are followed by one of these.
_CALLS = (
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    *("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize"),
    *("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "xpuSynchronize"),
)
_COPIES = frozenset({"cudaMemcpy", "hipMemcpy", "cudaMemcpy2D", "hipMemcpyWithStream"})
#: Waits that belong to a library's own work, or to the profiler.
_NOT_THEIRS = ("ProfilerStep", "c10d::", "nccl:")
_MOST = 8
#: Operators that begin before a call and are looked at for it.
_MOST_NESTED = 12
_DEVICE = (Category.KERNEL, Category.MEMORY)


def read_host(
    events: EventTable, outline: Outline, window: tuple[int, int], functions: Functions
) -> tuple[tuple[Layer, ...], Durations]:
    """The host's own events, as layers of which earlier ones come first, and their executions.

    Args:
        events: The trace, or the part of it that touches the window.
        outline: Of the whole trace.
        window: Start and end.
        functions: Takes the functions found.
    """
    note = events.category == Category.ANNOTATION
    work = events.category == Category.OPERATOR
    if outline.has_accelerator:
        work |= (events.category == Category.RUNTIME) & ~is_allocation(events)
    mine = (events.thread == outline.training_thread) & (note | work)
    leaves = _leaves(events, np.flatnonzero(mine), window)
    notes = split_at(leaves.where(note[leaves.execution]), phase_borders(outline.parts))
    notes = _named(events, notes, phases_at(notes.start, outline.parts), functions)
    if not outline.has_accelerator:
        return (notes,), _executions(notes)
    own = leaves.where(work[leaves.execution])
    begin = events.start_ns[own.execution]
    layers = [_named(events, own, phases_at(begin, outline.parts), functions)]
    engines = np.isin(events.thread, outline.autograd_threads)
    for _, rows in rows_by_thread(events, np.flatnonzero(work & engines)):
        found = _leaves(events, rows, window)
        backward = np.full(len(found.start), _BACKWARD, dtype=np.int8)
        layers.append(_named(events, found, backward, functions, autograd=True))
    parts = [_executions_of_one_function(layer) for layer in layers]
    return (*layers, notes), join_durations([*parts, _executions(notes)])


def _leaves(events: EventTable, rows: NDArray[np.int64], window: tuple[int, int]) -> Layer:
    """Moments in which these events of one thread are the innermost ones, with their rows as executions."""
    start, end = events.start_ns[rows], events.end_ns[rows]
    inner = rows[(start < end) & (start < window[1]) & (end > window[0])].astype(np.int32)
    low, high, leaf = leaf_segments(events.start_ns[inner], events.end_ns[inner])
    return Layer(low, high, np.full(len(low), -1, np.int32), inner[leaf]).within(*window)


def _named(
    events: EventTable, leaves: Layer, phase: NDArray[np.int8], functions: Functions, autograd: bool = False
) -> Layer:
    """Leaves under their functions: name and phase."""
    is_note = events.category[leaves.execution] == Category.ANNOTATION
    code = (events.name[leaves.execution].astype(np.int64) * 2 + is_note) * len(PHASES) + phase
    codes, inverse = distinct_codes(code)
    numbers = []
    for one in codes.tolist():
        name, noted = divmod(one // len(PHASES), 2)
        numbers.append(functions.number(_key(events.strings[name], bool(noted), one % len(PHASES), autograd)))
    function = np.array(numbers, dtype=np.int32)[inverse] if numbers else np.empty(0, dtype=np.int32)
    return leaves._replace(function=function)


def _key(name: str, is_note: bool, phase: int, autograd: bool) -> FunctionKey:
    if is_note and name.startswith(LOADER_PREFIX):
        return FunctionKey(kind="python", name=name[len(LOADER_PREFIX) :][:200], phase="input")
    plain = clean_note(name) if is_note else name
    return FunctionKey(
        kind="other", name=plain[:200], phase=PHASES[phase], thread="autograd" if autograd else "training"
    )


def clean_note(name: str) -> str:
    """A note's name without what counts up: "ProfilerStep#5" -> "ProfilerStep", "batch 7" -> "batch N"."""
    if name.startswith(_STEP):
        return _STEP
    return _NUMBER.sub("N", name[:500])


def _executions_of_one_function(layer: Layer) -> Durations:
    """Own times of events that have the same function all the time."""
    size = int(layer.execution.max(initial=-1)) + 1
    own = np.bincount(layer.execution, weights=(layer.end - layer.start).astype(np.float64), minlength=size)
    function = np.zeros(size, dtype=np.int32)
    function[layer.execution] = layer.function
    rows = np.flatnonzero(own)
    return Durations(function[rows], own[rows].astype(np.int64), rows.astype(np.int32))


def _executions(layer: Layer) -> Durations:
    """Own times of events; one whose own time lies in several phases counts in each."""
    width = int(layer.function.max(initial=0)) + 1
    codes, inverse = np.unique(layer.execution.astype(np.int64) * width + layer.function, return_inverse=True)
    length = (layer.end - layer.start).astype(np.float64)
    own = np.bincount(inverse, weights=length, minlength=len(codes)).astype(np.int64)
    return Durations((codes % width).astype(np.int32), own, (codes // width).astype(np.int32))


def device_time(
    events: EventTable, outline: Outline, samples: ThreadSamples, window: tuple[int, int], functions: int
) -> NDArray[np.float64]:
    """Measure how long the device works on what the host launched, by the function sampled then.

    Allocations count as such work.

    Collectives are left out: their kernels wait. Whoever waits for the device is sampled far longer than it launches,
    so samples in calls that last say only who made these calls.

    Args:
        events: The whole trace.
        outline: Of the trace.
        samples: Of the training thread, in order of time.
        window: Start and end, wall clock, nanoseconds; work outside of it does not count.
        functions: How many there are.

    Returns:
        Nanoseconds; zeros where the trace does not tell who launched what. float64 [functions].
    """
    work, call = launches_of(events, outline)
    waits = events.communication()
    if len(work):
        work, call = work[~waits[events.name[work]]], call[~waits[events.name[work]]]
    if not len(work) or not len(samples.time_ns):
        return np.zeros(functions)
    direct = np.flatnonzero(is_allocation(events) & (events.thread == outline.training_thread))
    work, call = np.concatenate((work, direct)), np.concatenate((call, direct))
    length = np.minimum(events.end_ns[work], window[1]) - np.maximum(events.start_ns[work], window[0])
    sample = _samples_of_calls(events, outline, samples, call)
    known = (sample >= 0) & (length > 0)
    function = samples.function[sample[known]]
    return np.bincount(function, weights=length[known], minlength=functions).astype(np.float64)


def _samples_of_calls(
    events: EventTable, outline: Outline, samples: ThreadSamples, call: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Find the sample that shows each call's caller: one in it, else the nearest outside lasting calls; -1 for none."""
    time, start, end = samples.time_ns, events.start_ns[call], events.end_ns[call]
    own = np.searchsorted(time, start)
    inner = time[np.minimum(own, len(time) - 1)]
    taken = (own < len(time)) & (inner >= start) & (inner < end)
    mine = (events.category == Category.RUNTIME) & (events.thread == outline.training_thread)
    lasting = np.flatnonzero(mine & (events.end_ns - events.start_ns >= _LASTS_NS))
    free = np.flatnonzero(~inside(time, *unite(events.start_ns[lasting], events.end_ns[lasting])))
    if not len(free):
        return np.where(taken, own, -1)
    after = np.minimum(np.searchsorted(time[free], start), len(free) - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.abs(start - time[free[before]]) < np.abs(time[free[after]] - start)
    nearest = free[np.where(nearer, before, after)]
    near = np.abs(time[nearest] - start) <= _FAR_NS
    return np.where(taken, own, np.where(near, nearest, -1))


def launching_moments(events: EventTable, outline: Outline) -> tuple[Times, Times]:
    """Find moments when hosts whose Python is traced are about to launch, as united stretches (start, end).

    Threads that train and those of the autograd engine count.
    """
    hosts = np.isin(events.thread, (outline.training_thread, *outline.autograd_threads))
    named = events.names_where([name.startswith(ALL_LAUNCHES) for name in events.strings])
    rows = np.flatnonzero((events.category == Category.RUNTIME) & named & hosts)
    return unite(events.start_ns[rows] - _TRACED_REACH_NS, events.end_ns[rows])


def within(layer: Layer, start: Times, end: Times) -> Layer:
    """Cut a layer to its parts inside united stretches of time."""
    parts = split_at(layer, distinct(np.concatenate((start, end))))
    return parts.where(inside(parts.start, start, end))


def read_launching(
    events: EventTable, outline: Outline, window: tuple[int, int], functions: Functions
) -> tuple[Layer, Durations]:
    """Moments shortly before launches of the training thread and of the autograd engine's, by part of the iteration.

    Args:
        events: The trace, or the part of it that touches the window.
        outline: Of the whole trace.
        window: Start and end, wall clock, nanoseconds.
        functions: Takes the functions found.

    Returns:
        The moments, and the launches for counting.
    """
    hosts = np.isin(events.thread, (outline.training_thread, *outline.autograd_threads))
    named = events.names_where([name.startswith(ALL_LAUNCHES) for name in events.strings])
    rows = np.flatnonzero((events.category == Category.RUNTIME) & named & hosts)
    phase: NDArray[np.int8] = phases_at(events.start_ns[rows], outline.parts)
    phase[events.thread[rows] != outline.training_thread] = _BACKWARD
    number_P = np.array(
        [functions.number(FunctionKey(kind="other", name=LAUNCHING, phase=PHASES[at])) for at in range(len(PHASES))],
        dtype=np.int32,
    )
    function, row = number_P[phase], rows.astype(np.int32)
    low, high, which = first_come(events.start_ns[rows] - _REACH_NS, events.end_ns[rows])
    length = np.zeros(len(rows), dtype=np.int64)
    length[which] = high - low
    return Layer(low, high, function[which], row[which]).within(*window), Durations(function, length, row)


class _Waits(NamedTuple):
    """Waits of the host that drained the device. S of them.

    Attributes:
        row: Row in the table of events. int64 [S].
        waited_ns: Until the device had nothing left. int64 [S].
        lost_ns: Idle time of the device that follows from it. int64 [S].
    """

    row: NDArray[np.int64]
    waited_ns: Times
    lost_ns: Times


def find_syncs(
    events: EventTable,
    outline: Outline,
    edges_ns: Times,
    samples: ThreadSamples | None,
    functions: Functions,
) -> tuple[Synchronization, ...]:
    """Waits of the training thread for its device in a window, by what waits, the costliest first.

    Args:
        events: The whole trace.
        outline: Of the whole trace; nothing is found without an accelerator.
        edges_ns: Boundaries of the iterations, wall clock. int64 [I + 1].
        samples: Python of the training thread, to name who called.
        functions: Names of the samples.
    """
    if not outline.has_accelerator:
        return ()
    waits = _find_waits(events, outline, edges_ns)
    names = _operator_names(events, waits.row)
    groups: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        groups[name].append(place)
    found = [_describe(events, waits, name, places, edges_ns, samples, functions) for name, places in groups.items()]
    return tuple(sorted(found, key=lambda one: (-one.lost_s, one.name))[:_MOST])


def _find_waits(events: EventTable, outline: Outline, edges_ns: Times) -> _Waits:
    wanted = [name.startswith(_CALLS) or name in _COPIES for name in events.strings]
    chosen = events.names_where(wanted) & (events.category == Category.RUNTIME)
    chosen &= np.isin(events.thread, (outline.training_thread, *outline.autograd_threads))
    chosen &= (events.start_ns >= edges_ns[0]) & (events.start_ns < edges_ns[-1])
    row = np.flatnonzero(chosen)
    busy = np.flatnonzero(np.isin(events.category, _DEVICE))
    nothing = _Waits(row[:0], np.empty(0, np.int64), np.empty(0, np.int64))
    if not len(row) or not len(busy):
        return nothing
    low, high = unite(events.start_ns[busy], events.end_ns[busy])
    start, end = events.start_ns[row], events.end_ns[row]
    last = np.searchsorted(high, end, side="right") - 1  # the last stretch of work that is over when the call returns
    following = np.minimum(last + 1, len(low) - 1)
    drained = high[np.maximum(last, 0)]
    is_dry = (last >= 0) & (last + 1 < len(low)) & (drained > start) & (low[following] >= end)
    waited = np.where(is_dry, drained - start, 0)
    lost = np.where(is_dry, np.minimum(low[following] - drained, waited), 0)
    kept = (end > start) & (lost >= 0)
    return _Waits(row[kept], waited[kept], lost[kept])


def _operator_names(events: EventTable, rows: NDArray[np.int64]) -> list[str]:
    """Name the operator that asked for each call, such as "aten::item"; a call outside any operator names itself.

    Only operators of the call's own thread are around it.
    """
    names = [""] * len(rows)
    for thread in np.unique(events.thread[rows]):
        operators = np.flatnonzero((events.category == Category.OPERATOR) & (events.thread == thread))
        for place in np.flatnonzero(events.thread[rows] == thread).tolist():
            row = int(rows[place])
            names[place] = _asked_for(_around(events, operators, int(events.start_ns[row]))) or events.name_of(row)
    return names


def _around(events: EventTable, operators: NDArray[np.intp], moment_ns: int) -> list[str]:
    """Names of the operators that are under way at a moment, the innermost first."""
    place = int(np.searchsorted(events.start_ns[operators], moment_ns, side="right"))
    nearby = operators[max(place - _MOST_NESTED, 0) : place][::-1]
    names = [events.name_of(int(row)) for row in nearby[events.end_ns[nearby] >= moment_ns]]
    return [name for name in names if not name.startswith(_NOT_THEIRS)]


def _asked_for(around: Sequence[str]) -> str:
    """The outermost of torch's own operators that directly enclose each other, else the innermost of any kind.

    "aten::item" calls "aten::_local_scalar_dense"; what encloses both, such as a compiled region, waits for much else.
    """
    torchs = list(takewhile(lambda name: name.startswith("aten::"), around))
    return torchs[-1] if torchs else next(iter(around), "")


def _describe(
    events: EventTable,
    waits: _Waits,
    name: str,
    places: Sequence[int],
    edges_ns: Times,
    samples: ThreadSamples | None,
    functions: Functions,
) -> Synchronization:
    rows = waits.row[list(places)]
    lost = waits.lost_ns[list(places)]
    iterations = len(edges_ns) - 1
    at = np.clip(np.searchsorted(edges_ns, events.start_ns[rows], side="right") - 1, 0, iterations - 1)
    per_iteration = np.bincount(at, weights=lost / 1000.0, minlength=iterations)
    calls = Counter(events.name_of(int(row)) for row in rows)
    return Synchronization(
        name=name[:200],
        call=calls.most_common(1)[0][0][:200],
        stack=_caller(events, rows, samples, functions),
        count=len(rows),
        waited_s=float(waits.waited_ns[list(places)].sum()) / 1e9,
        lost_s=float(lost.sum()) / 1e9,
        per_iteration_us=encode_series(per_iteration.astype(np.float32)),
    )


def _caller(
    events: EventTable, rows: NDArray[np.int64], samples: ThreadSamples | None, functions: Functions
) -> tuple[str, ...]:
    """The stack that was sampled most often in these calls; empty if none was."""
    if samples is None or not len(samples.time_ns):
        return ()
    low, high = (np.searchsorted(samples.time_ns, side[rows]) for side in (events.start_ns, events.end_ns))
    inside = [samples.function[a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True) if b > a]
    if not inside:
        return ()
    number, count = np.unique(np.concatenate(inside), return_counts=True)
    return functions.keys[int(number[int(count.argmax())])].stack
