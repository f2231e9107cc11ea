"""Find the time that the training thread waits for a collective which host threads run beside it.

A collective on a device is critical whenever nothing of a higher class runs; so are all where there is a device. Gloo's
threads work beside the training thread, which may go on: with Python that leaves no events, or asleep beside a device
that nobody sees. There an open collective costs something only if it is waited for, and such a wait shows: it ends when
the collective does. So time is cut at every sign of life of the training thread: an operator or note began or ended,
the collector ran, the kernel saw it run or wait for a timer, its stack waits for something else. Of each collective
only the stretch in which it ended can be a wait, or one shortly before that, where ends are noted late. (Who polls for
it, with pauses, is taken for Python.)

Where the kernel's states are not known, samples cut that stretch further, to the stack that was there last. It waits if
it was over when the collective was, or when a later one was, or is over with most of the collectives that end in it;
then all of it is the wait. A stack that goes on regardless is Python, and keeps its time. If another stack often
follows before the end, only what comes after is the wait: that other one waits, too briefly to be sampled each time.

Where a stretch holds no sample or is shorter than their period, all of it is a wait: samples tell nothing about it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.summarize.sampled import ThreadSamples
from eroica.summarize.sweep import Times, distinct, inside

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
#: A sign of life so soon after an end says that it was waited for.
_AT_ONCE_NS = 1_000_000
#: A group's thread may lose its core between waking who waits and noting the end; then nothing but moments are left
#: between the last sign of life and the end.
_NOTED_LATE_NS = 10_000_000
_MOMENT_NS = 200_000
#: Such stretches that are looked back through, and how much longer than the own one the wait must be.
_LOOKED_BACK = 16
_FAR_LONGER = 4
#: Share of the ends within its runs with which a function is over if it waits.
_MOSTLY = 0.5
#: Up to this share of the samples of a function that waits, another one follows before the end.
_FOLLOWED = 0.2


class Witness(NamedTuple):
    """Evidence on whether the training thread waits.

    Attributes:
        samples: Its Python.
        rate_hz: Samples per second.
        awake: Moments at which the kernel showed it to wait for no other thread. int64 [M].
        elsewhere: Moments at which its stack showed it to wait for something else (`waits_elsewhere`). int64 [N].
    """

    samples: ThreadSamples
    rate_hz: float
    awake: Times
    elsewhere: Times


#: Starts and ends of collectives of host threads, or of what of them was waited for. int64 [C] each.
Spans = tuple[Times, Times]


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
    witness: Witness,
    window: tuple[int, int],
) -> Spans:
    """Find the part of each collective that the training thread waited for; empty (end = start) where there is none.

    Args:
        spans: Collectives, clipped to the window.
        active: Further signs of life of the training thread, in any order. int64 [M].
        busy: When it computed or collected garbage; disjoint, in order.
        witness: Of the training thread.
        window: Start and end.
    """
    samples, signs = witness.samples, np.concatenate((active, witness.awake, witness.elsewhere))
    cuts = distinct(np.concatenate((window, signs[(signs > window[0]) & (signs < window[1])])).astype(np.int64))
    knows_states = len(witness.awake) > 0
    low, high, is_late = _stretches(spans, cuts, busy, knows_states)
    start = np.maximum(spans[0], low)
    end = np.maximum(np.minimum(spans[1], high), start)
    inner = (samples.time_ns >= window[0]) & (samples.time_ns < window[1])
    if not inner.any() or not len(start) or knows_states:  # states are finer than stacks, and leave no doubt
        return start, end
    runs = _find_runs(samples.time_ns[inner], samples.function[inner], cuts, 1e9 / witness.rate_hz)
    return _since((start, end), high - end <= _AT_ONCE_NS, is_late, runs), end


def _stretches(
    spans: Spans, cuts: Times, busy: tuple[Times, Times], knows_states: bool
) -> tuple[Times, Times, NDArray[np.bool_]]:
    """Find the signs of life between which each collective ended, and whether that is shortly before its noted end.

    A thread that waits for a future (DistributedDataParallel) goes on before the end is noted. Where the states of the
    thread are known, a stretch far longer than the own one (than a moment, if the thread computed in that) is no
    Python, and so the wait.
    """
    begin, end = spans
    is_busy = inside(cuts[:-1] + np.diff(cuts) // 2, *busy)
    place = np.clip(np.searchsorted(cuts, end, side="left") - 1, 0, len(cuts) - 2)
    own = np.minimum(end, cuts[place + 1]) - np.maximum(begin, cuts[place])
    free = np.flatnonzero(~is_busy & (np.diff(cuts) > _MOMENT_NS))
    is_late = np.zeros(len(place), dtype=np.bool_)
    if len(free):
        last = np.searchsorted(free, place, side="left") - 1
        best, most = place, np.where(is_busy[place], 0, np.maximum(own, 0)) * (_FAR_LONGER if knows_states else 1)
        may_be_late = is_busy[place] | (own <= _MOMENT_NS) | knows_states
        for back in range(_LOOKED_BACK if knows_states else 1):
            before = free[np.maximum(last - back, 0)]
            waited = np.minimum(end, cuts[before + 1]) - np.maximum(begin, cuts[before])
            fits = (last >= back) & (waited > _MOMENT_NS) & (cuts[before + 1] >= end - _NOTED_LATE_NS)
            fits &= may_be_late & (waited > most)
            best, most, is_late = np.where(fits, before, best), np.where(fits, waited, most), is_late | fits
        place = best
    return cuts[place], cuts[place + 1], is_late


class _Runs(NamedTuple):
    """Samples in order, and runs of them: of one function, without a sign of life between. S samples, R runs.

    Attributes:
        time: int64 [S].
        run: Number of its run. int64 [S].
        tells: It lies in a stretch that is not shorter than a period. bool [S].
        function: int32 [R].
        since: Since when the run's function may have been there. int64 [R].
        last: Its last sample. int64 [R].
        period_ns: Of the samples.
    """

    time: Times
    run: NDArray[np.int64]
    tells: NDArray[np.bool_]
    function: NDArray[np.int32]
    since: Times
    last: NDArray[np.int64]
    period_ns: float


def _find_runs(time: Times, function: NDArray[np.int32], cuts: Times, period_ns: float) -> _Runs:
    stretch = np.clip(np.searchsorted(cuts, time, side="right") - 1, 0, len(cuts) - 2)
    begins = np.append(True, (function[1:] != function[:-1]) | (stretch[1:] != stretch[:-1]))
    first = np.flatnonzero(begins)
    before = np.maximum(first - 1, 0)
    is_change = (first > 0) & (stretch[before] == stretch[first])
    middle = time[before] + (time[first] - time[before]) // 2
    return _Runs(
        time=time,
        run=np.cumsum(begins) - 1,
        tells=(np.diff(cuts) >= period_ns)[stretch],
        function=function[first],
        since=np.where(is_change, middle, cuts[stretch[first]]),
        last=np.append(first[1:], len(time)) - 1,
        period_ns=period_ns,
    )


def _since(waits: Spans, at_once: NDArray[np.bool_], is_late: NDArray[np.bool_], runs: _Runs) -> Times:
    """Since when each collective was waited for: since the stack that was seen last, or since that was over, or never.

    Args:
        waits: Collectives, cut to the stretches in which they ended. C of them.
        at_once: The thread showed life right after the end. bool [C].
        is_late: It did so before the end, which may have been noted late. bool [C].
        runs: Samples.
    """
    time, (start, end) = runs.time, waits
    at = np.maximum(np.searchsorted(time, end, side="left") - 1, 0)
    seen = (time[at] >= start) & (time[at] < end) & runs.tells[at]
    mine = runs.run[at]
    is_over = seen & ~is_late & (at_once | (time[runs.last[mine]] <= end + runs.period_ns / 2))
    reached, passed = _reached(runs, np.searchsorted(time, start, side="left")[is_over], mine[is_over])
    is_over |= seen & ~is_late & reached[mine]
    count = int(runs.function.max()) + 1
    size = np.diff(np.append(-1, runs.last))
    waiting = np.bincount(runs.function, weights=size * reached, minlength=count)
    going_on = np.bincount(runs.function, weights=size * (passed & ~reached), minlength=count)
    function = runs.function[mine]
    ends = np.bincount(function[seen], minlength=count)
    over = np.bincount(function[is_over], minlength=count)
    is_wait = is_over | (over >= _MOSTLY * ends)[function]
    is_whole = (going_on <= _FOLLOWED * (going_on + waiting))[function]
    following = np.append(time[1:], time[-1] + round(runs.period_ns))[at]
    rest = np.where(runs.last[mine] == at, time[at] + (following - time[at]) // 2, end)
    since = np.where(is_whole, np.maximum(start, runs.since[mine]), np.minimum(rest, end))
    return np.where(seen, np.minimum(np.where(is_wait, since, end), end), start)


def _reached(
    runs: _Runs, first: NDArray[np.int64], last: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Runs with which a collective was over, and those before them in its time. bool [R] each.

    Args:
        runs: R of them.
        first: First sample in each such collective's time.
        last: Its last run.
    """
    reached = np.zeros(len(runs.function), dtype=np.bool_)
    reached[last] = True
    steps = np.zeros(len(runs.function) + 1, dtype=np.int64)
    np.add.at(steps, runs.run[first], 1)
    np.add.at(steps, last, -1)
    return reached, np.cumsum(steps)[:-1] > 0
