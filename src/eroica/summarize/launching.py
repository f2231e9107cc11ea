"""Find moments in which the host is about to launch the next kernel while its accelerator has no work.

Eager code launches half of its kernels within 50 microseconds of the one before, 90 % within 140 (measured with
recording on, PyTorch 2.11, H100). A device that is faster than that idles in between, and stacks sampled there show
whatever module launches: to call that Python on the critical path would accuse the model itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import LAUNCHING, FunctionKey
from eroica.summarize.activity import Durations, Outline, is_allocation, launches_of
from eroica.summarize.functions import Functions
from eroica.summarize.phases import PHASES, phases_at
from eroica.summarize.sampled import ThreadSamples
from eroica.summarize.sweep import Layer, Times, distinct, first_come, inside, split_at, unite
from eroica.trace.schema import ALL_LAUNCHES
from eroica.trace.table import Category, EventTable

#: The time before a launch that belongs to it: operators, their dispatch, the module that calls them.
_REACH_NS = 100_000
#: The same where every Python call was traced, which makes a host several times as slow.
_TRACED_REACH_NS = 400_000
#: A sample so far from a launch says nothing of it; a call that takes so long waits.
_FAR_NS, _LASTS_NS = 20_000_000, 1_000_000
_BACKWARD = PHASES.index("backward")


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
