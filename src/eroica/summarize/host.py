"""Explain the moments in which the device idles by the host's own events.

In recorded traces, gaps of the device are explained by the innermost event of the training thread (an operator, a call
of the driver, a note), else by one of the autograd engine's threads. Without an accelerator only the own time of notes
is left. The own time of the loader's note is the loader's Python.

Eager code launches half of its kernels within 50 microseconds of the one before, 90 % within 140 (recorded, PyTorch
2.11, H100). A faster device idles in between. Stacks sampled there show whatever module launches, which is no fault.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import LAUNCHING, FunctionKey
from eroica.summarize.activity import Outline, is_allocation, launches_of
from eroica.summarize.phases import LOADER_PREFIX, PHASES, phase_borders, phases_at
from eroica.summarize.sampled import ThreadSamples
from eroica.summarize.sweep import (
    Durations,
    Functions,
    Layer,
    Times,
    distinct,
    first_come,
    inside,
    join_durations,
    nest,
    rows_by_thread,
    split_at,
    stretches,
    unite,
)
from eroica.trace.table import ALL_LAUNCHES, Category, EventTable

_STEP = "ProfilerStep"
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_BACKWARD = PHASES.index("backward")
#: The time before a launch that belongs to it: operators, their dispatch, the module that calls them.
_REACH_NS = 100_000
#: The same where every Python call was traced, which makes a host several times as slow.
_TRACED_REACH_NS = 400_000
#: A sample so far from a launch says nothing of it; a call that takes so long waits.
_FAR_NS, _LASTS_NS = 20_000_000, 1_000_000


def read_host(
    events: EventTable, outline: Outline, window: tuple[int, int], functions: Functions
) -> tuple[tuple[Layer, ...], Durations]:
    """The host's own events, as layers of which earlier ones come first, and their executions.

    Args:
        events: The trace.
        outline: Of it.
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
    return (*layers, notes), join_durations([_executions(layer) for layer in (*layers, notes)])


def _leaves(events: EventTable, rows: NDArray[np.int64], window: tuple[int, int]) -> Layer:
    """Moments in which these events of one thread are the innermost ones, with their rows as executions."""
    start, end = events.start_ns[rows], events.end_ns[rows]
    inner = rows[(start < end) & (start < window[1]) & (end > window[0])].astype(np.int32)
    low, high, leaf = nest(events.start_ns[inner], events.end_ns[inner]).leaves()
    return stretches(low, high, -1)._replace(execution=inner[leaf]).within(*window)


def _named(
    events: EventTable, leaves: Layer, phase: NDArray[np.int8], functions: Functions, autograd: bool = False
) -> Layer:
    """Leaves under their functions: name and phase."""
    is_note = events.category[leaves.execution] == Category.ANNOTATION
    code = (events.name[leaves.execution].astype(np.int64) * 2 + is_note) * len(PHASES) + phase

    def key_of(one: int) -> FunctionKey:
        name, noted = divmod(one // len(PHASES), 2)
        return _key(events.strings[name], bool(noted), one % len(PHASES), autograd)

    return leaves._replace(function=functions.numbers(code, key_of))


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
    waits = events.communication()[work]
    work, call = work[~waits], call[~waits]
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
    rows = _launches(events, outline)
    return unite(events.start_ns[rows] - _TRACED_REACH_NS, events.end_ns[rows])


def _launches(events: EventTable, outline: Outline) -> NDArray[np.intp]:
    """Rows of launches by the training thread and the autograd engine's."""
    hosts = np.isin(events.thread, (outline.training_thread, *outline.autograd_threads))
    return np.flatnonzero(hosts & events.named(lambda name: name.startswith(ALL_LAUNCHES), Category.RUNTIME))


def within(layer: Layer, start: Times, end: Times) -> Layer:
    """Cut a layer to its parts inside united stretches of time."""
    parts = split_at(layer, distinct(np.concatenate((start, end))))
    return parts.where(inside(parts.start, start, end))


def read_launching(
    events: EventTable, outline: Outline, window: tuple[int, int], functions: Functions
) -> tuple[Layer, Durations]:
    """Moments shortly before launches of the training thread and of the autograd engine's, by part of the iteration.

    Args:
        events: The trace.
        outline: Of it.
        window: Start and end, wall clock, nanoseconds.
        functions: Takes the functions found.

    Returns:
        The moments, and the launches for counting.
    """
    rows = _launches(events, outline)
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
