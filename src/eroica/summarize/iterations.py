"""Find the iterations and the training thread of a trace that nobody has marked for us.

Marks are looked for in this order, and the first kind that is found counts: the profiler's own steps, whose numbers are
the same on all workers; optimizer steps; the data loader's next; ranges that the user has numbered. Else the whole
trace is one iteration.

All boundaries are moments of the host. The device lags behind it, so kernels of the step before the window run inside
it, and those of the last step run on after it: equally many in a steady state. There is one exception: the trace ends
with its last step, and a good part of the work launched in the window has not begun at its end. Then the host had run
ahead of an idle device, and the end moves to the end of that work. Where the host was ahead by most of it, the other
boundaries move, too: each iteration ends with the last kernel that it launched.

Warm-up: compilation and cuDNN's trials make the first steps several times as long. Leading steps are left out, three at
most, if each is more than twice the median of those behind them and half as long again as any of these. A profiler's
step at either end is taken for cut and left out if it is shorter than half the shortest of the others and less was done
in it than in any of them. The only step is never left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from eroica.summarize.phases import (
    ENGINE_PREFIX,
    LOADER_PREFIX,
    NO_STARTUP,
    STEP_PREFIX,
    StartUp,
    find_startup,
    find_training_thread,
    is_backward_name,
)
from eroica.summarize.sweep import Times, inside, unite
from eroica.trace.table import LAUNCHES, Category, EventTable

_STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
#: Ranges of the user's own, as those of NVTX.
_NUMBERED = re.compile(r"^(?:iteration|iter|step|train_step|training_step)[ _:#=]*(\d{1,9})$", re.IGNORECASE)
_WARM_UP = 2.0
_BEYOND = 1.5
_MOST_WARM_UP = 3
_CUT = 0.5
_COMPLETE = 0.9
_RARER = 8
_NOT_BEGUN = 0.2
_FEWEST_MARKS = 2
#: An iteration of which so much is start-up is none.
_STARTS_UP = 0.2
#: Of the later half of the iterations, one of which so much looks like start-up says that it is none.
_COMES_AGAIN = 0.02
_NOT_WHOLE = "not recorded whole"


@dataclass(frozen=True, eq=False)
class Iterations:
    """The iterations of a trace.

    Attributes:
        edges_ns: Boundaries, wall clock, rising. int64 [I + 1], I >= 1.
        first: Number of the first one: the profiler's own where it has one, else counted from the trace's beginning.
        found_by: "profiler steps", "optimizer steps", "loader", "marks" or "span".
        training_thread: Kernel thread id of the thread that trains.
        notes: What was left out, and what could not be told.
        startup: When the process was being set up, anywhere in the trace.
    """

    edges_ns: Times
    first: int
    found_by: str
    training_thread: int
    notes: tuple[str, ...] = ()
    startup: StartUp = NO_STARTUP

    @property
    def steps(self) -> tuple[int, int]:
        """First and last number of steps that are numbered in the trace, (-1, -1) for others."""
        is_numbered = self.found_by in ("profiler steps", "marks")
        return (self.first, self.first + len(self.edges_ns) - 2) if is_numbered else (-1, -1)


def find_iterations(events: EventTable, most: int) -> Iterations:
    """Find the training thread and its iterations.

    Args:
        events: As they were read, with marks as annotations; at least one that lasts.
        most: Iterations of a window; of more, the last ones count.
    """
    host = (events.category == Category.ANNOTATION) & (events.start_ns < events.end_ns)
    found = (
        _counted(events, host, _STEP, "profiler steps", 1)
        or _optimizer_steps(events, host)
        or _loader(events, host)
        or _counted(events, host, _NUMBERED, "marks", _FEWEST_MARKS)
        or _span(events)
    )
    return _follow_device(events, _latest(_without_warm_up(_without_startup(events, found)), most))


def between(found: Iterations, first: int, last: int) -> Iterations:
    """Only the iterations with these numbers, ends included; all of them where none has.

    Args:
        found: Iterations of a trace.
        first: Number of the first one wanted.
        last: Number of the last one.
    """
    low, high = max(first - found.first, 0), min(last + 1 - found.first, len(found.edges_ns) - 1)
    if low >= high:
        return found
    return replace(found, edges_ns=found.edges_ns[low : high + 1], first=found.first + low)


# --- what marks iterations ---


def _counted(
    events: EventTable, host: NDArray[np.bool_], named: re.Pattern[str], found_by: str, fewest: int
) -> Iterations | None:
    """Iterations that are marked by ranges with numbers in their names."""
    numbers = [int(match[1]) if (match := named.match(name)) else -1 for name in events.strings]
    number = np.array(numbers, dtype=np.int64)[events.name] if numbers else np.empty(0, np.int64)
    rows = np.flatnonzero(host & (number >= 0))
    if not len(rows):
        return None
    thread = _most_frequent(events.thread[rows])
    rows = _longest_of_each(events, rows[events.thread[rows] == thread], number)
    kept = rows[_longest_run(number[rows])]
    if len(kept) < fewest:
        return None
    edges = np.append(events.start_ns[kept], events.end_ns[kept[-1]])
    first = int(number[kept[0]])
    notes = () if len(kept) == len(rows) else (f"{len(rows) - len(kept)} {found_by} do not follow the others",)
    return _without_cut(events, _rising(Iterations(edges, first, found_by, thread, notes)))


def _optimizer_steps(events: EventTable, host: NDArray[np.bool_]) -> Iterations | None:
    rows = np.flatnonzero(host & events.named(lambda name: name.startswith(STEP_PREFIX)))
    rows = rows[~_in_backward(events, rows)]
    if not len(rows):
        return None
    thread = _most_frequent(events.thread[rows])
    rows = _outermost(events, rows[events.thread[rows] == thread])
    rows = _of_rarest(events, rows)
    ends = _last_of_each(events.end_ns[rows], events.start_ns[rows], _work_starts(events))
    if len(ends) < 2:
        return None
    before = int(ends[0]) - 1
    begin = min(int(events.start_ns[_thread_work(events, thread)].min(initial=before)), before)
    edges = np.append(begin, ends)
    return _without_half_first(events, _rising(Iterations(edges, 0, "optimizer steps", thread)))


def _loader(events: EventTable, host: NDArray[np.bool_]) -> Iterations | None:
    rows = np.flatnonzero(host & events.named(lambda name: name.startswith(LOADER_PREFIX)))
    if not len(rows):
        return None
    thread = _most_frequent(events.thread[rows])
    rows = _of_rarest(events, _outermost(events, rows[events.thread[rows] == thread]))
    starts = events.start_ns[rows]
    if len(starts) < 2:
        return None
    work = _thread_work(events, thread)
    last = int(events.end_ns[work].max(initial=int(events.end_ns[rows[-1]])))
    edges = np.append(starts, max(last, int(starts[-1]) + 1))
    found = _rising(Iterations(edges, 0, "loader", thread))
    if found is None or len(found.edges_ns) < 3:
        return found
    done = _work_done(events, found)
    return _cut(found, 0, int(done[-1] < _COMPLETE * np.median(done[:-1])), _NOT_WHOLE)


def _without_startup(events: EventTable, found: Iterations) -> Iterations:
    """Without leading iterations in which the process was being set up, three at most and never the only one."""
    startup = find_startup(events)
    found = replace(found, startup=startup)
    if not len(startup.start) or found.found_by == "span":
        return found
    spans = list(pairwise(found.edges_ns.tolist()))
    shares = [startup.within(begin, end) / max(end - begin, 1) for begin, end in spans]
    if len(shares) > 1 and max(shares[len(shares) // 2 :]) >= _COMES_AGAIN:
        return replace(found, startup=NO_STARTUP)  # what comes again is not done once
    count = 0
    while count < min(_MOST_WARM_UP, len(shares) - 1) and shares[count] >= _STARTS_UP:
        count += 1
    return _cut(found, count, 0, "start-up, once per process")


def _span(events: EventTable) -> Iterations:
    counts = np.flatnonzero((events.category != Category.OTHER) & (events.start_ns < events.end_ns))
    edges = np.array([events.start_ns[counts].min(), events.end_ns[counts].max()], dtype=np.int64)
    notes = ("no iterations were found in the trace: all of it counts as one",)
    return Iterations(edges, 0, "span", find_training_thread(events), notes)


# --- rows ---


def _most_frequent(values: NDArray[np.int64]) -> int:
    """The most frequent value, the first of several."""
    kinds, first, counts = np.unique(values, return_index=True, return_counts=True)
    return int(kinds[np.lexsort((first, -counts))[0]])


def _outermost(events: EventTable, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of one thread that lie in no other of them."""
    if not len(rows):
        return rows
    end = events.end_ns[rows]
    kept: NDArray[np.int64] = rows[np.append(True, end[1:] > np.maximum.accumulate(end)[:-1])]
    return kept


def _longest_of_each(events: EventTable, rows: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """The longest row of each number, in order of start."""
    length = events.end_ns[rows] - events.start_ns[rows]
    order = rows[np.lexsort((-length, number[rows]))]
    return np.sort(order[np.append(True, np.diff(number[order]) > 0)])


def _longest_run(number: NDArray[np.int64]) -> slice:
    """The longest stretch of consecutive numbers, the last of several."""
    breaks = np.flatnonzero(np.diff(number) != 1) + 1
    begins = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(number)]))
    longest = len(begins) - 1 - int(np.argmax((ends - begins)[::-1]))
    return slice(int(begins[longest]), int(ends[longest]))


def _of_rarest(events: EventTable, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keep the marks of the optimizer or loader used least (unless very seldom), of equals the last one."""
    names, place, counts = np.unique(events.name[rows][::-1], return_index=True, return_counts=True)
    often = counts * _RARER >= counts.max(initial=1)
    chosen = names[np.lexsort((place, counts, ~often))[0]] if len(names) else -1
    kept: NDArray[np.int64] = rows[events.name[rows] == chosen]
    return kept


def _in_backward(events: EventTable, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Optimizers that step inside the backward pass, once a parameter, mark no iterations."""
    engine = events.named(lambda name: name.startswith(ENGINE_PREFIX), Category.OPERATOR)
    found = np.zeros(len(rows), dtype=np.bool_)
    for thread in np.unique(events.thread[rows]).tolist():
        mine = events.thread[rows] == thread
        around = np.flatnonzero(engine & (events.thread == thread))
        found[mine] = inside(events.start_ns[rows[mine]], *unite(events.start_ns[around], events.end_ns[around]))
    return found


def _work_starts(events: EventTable) -> Times:
    """Starts of what separates two iterations: the backward pass where the trace shows one, else any operator."""
    backward = events.named(is_backward_name, Category.OPERATOR)
    if not backward.any():
        backward = events.category == Category.OPERATOR
    return events.start_ns[backward]


def _last_of_each(ends: Times, starts: Times, work: Times) -> Times:
    """Ends of marks; of several without work in between only the last one."""
    if not len(work):
        return ends
    between = np.searchsorted(work, starts[1:]) - np.searchsorted(work, ends[:-1])
    kept: Times = ends[np.append(between > 0, True)]
    return kept


def _thread_work(events: EventTable, thread: int) -> NDArray[np.int64]:
    work = (events.category == Category.OPERATOR) | (events.category == Category.ANNOTATION)
    return np.flatnonzero(work & (events.thread == thread))


# --- ends ---


def _rising(found: Iterations) -> Iterations | None:
    """Iterations that last; None if none does."""
    edges = found.edges_ns[np.append(True, np.diff(np.maximum.accumulate(found.edges_ns)) > 0)]
    return replace(found, edges_ns=edges) if len(edges) > 1 else None


def _work_done(events: EventTable, found: Iterations) -> NDArray[np.int64]:
    """Operators and notes of the training thread in each iteration."""
    work = events.start_ns[_thread_work(events, found.training_thread)]
    done: NDArray[np.int64] = np.diff(np.searchsorted(work, found.edges_ns)).astype(np.int64)
    return done


def _without_half_first(events: EventTable, found: Iterations | None) -> Iterations | None:
    """Leave out the time before the first optimizer step, unless as much was done in it as in the other iterations.

    An iteration in which the host only filled the queue of an idle device, for which it waits in all others, goes too.
    """
    if found is None or len(found.edges_ns) < 3:
        return found
    done, length = _work_done(events, found), np.diff(found.edges_ns)
    if done[0] < _COMPLETE * np.median(done[1:]):
        return _cut(found, 1, 0, _NOT_WHOLE)
    ran_ahead = length[0] < _CUT * length[1:].min() and (events.category == Category.KERNEL).any()
    return _cut(found, int(ran_ahead), 0, "the host ran ahead of the device")


def _without_cut(events: EventTable, found: Iterations | None) -> Iterations | None:
    """Without steps at the ends of the trace that the profiler recorded in part."""
    if found is None or len(found.edges_ns) < 3:
        return found
    length, done = np.diff(found.edges_ns), _work_done(events, found)

    def is_cut(one: int, others: slice) -> bool:
        shorter = length[one] < _CUT * length[others].min()
        return bool(shorter and done[one] < _COMPLETE * done[others].min())

    drop_last = int(is_cut(-1, slice(int(len(length) > 2), -1)))
    others = slice(1, len(length) - drop_last)
    drop_first = int(len(length[others]) > 0 and is_cut(0, others))
    return _cut(found, drop_first, drop_last, _NOT_WHOLE)


def _without_warm_up(found: Iterations) -> Iterations:
    length = np.diff(found.edges_ns).astype(np.float64)
    for count in range(min(_MOST_WARM_UP, len(length) // 2), 0, -1):
        least, rest = length[:count].min(), length[count:]
        if least > _WARM_UP * np.median(rest) and least > _BEYOND * rest.max():
            return _cut(found, count, 0, "warm-up, more than twice as long as the others")
    return found


def _cut(found: Iterations, first: int, last: int, why: str) -> Iterations:
    """Without iterations at the ends, and a note about it."""
    if not first and not last:
        return found
    words = [f"the {word} {cut if cut > 1 else 'one'}" for word, cut in (("first", first), ("last", last)) if cut]
    note = f"of {len(found.edges_ns) - 1} iterations {' and '.join(words)} left out: {why}"
    edges = found.edges_ns[first : len(found.edges_ns) - last]
    return replace(found, edges_ns=edges, first=found.first + first, notes=(*found.notes, note))


def _latest(found: Iterations, most: int) -> Iterations:
    spare = len(found.edges_ns) - 1 - max(most, 1)
    if spare <= 0:
        return found
    note = f"the last {most} of {most + spare} iterations count"
    return replace(found, edges_ns=found.edges_ns[spare:], first=found.first + spare, notes=(*found.notes, note))


def _follow_device(events: EventTable, found: Iterations) -> Iterations:
    """Move the end to that of the device's work where the host had run ahead of it (see the module's text)."""
    begin, end = int(found.edges_ns[0]), int(found.edges_ns[-1])
    kernels = np.flatnonzero((events.category == Category.KERNEL) & (events.end_ns > begin))
    moments = events.start_ns[events.named(lambda name: name.startswith(LAUNCHES), Category.RUNTIME)]
    launched = int(((moments >= begin) & (moments < end)).sum())
    if not len(kernels) or not launched or (moments >= end).any():
        return found
    begun = int(((events.start_ns[kernels] >= begin) & (events.start_ns[kernels] < end)).sum())
    last = int(events.end_ns[kernels].max())
    if launched - begun <= _NOT_BEGUN * launched or last <= end:
        return found
    note = (
        "the device was still busy with the last iteration when the host had left it: the window ends with the device"
    )
    edges = np.append(found.edges_ns[:-1], last)
    own = _ends_of_work(events, kernels, moments[moments >= begin], edges) if begun <= launched / 2 else None
    if own is not None:
        edges = own
        note = "the host ran ahead of the device: each iteration ends with the last kernel that it launched"
    return replace(found, edges_ns=edges, notes=(*found.notes, note))


def _ends_of_work(events: EventTable, kernels: NDArray[np.intp], calls: Times, edges: Times) -> Times | None:
    """Edges moved to the ends of the device's work; None where calls and kernels do not belong together one to one.

    Kernels begin in the order in which they were launched.
    """
    calls = np.sort(calls)
    if len(calls) != len(kernels):
        return None
    ends = np.maximum.accumulate(events.end_ns[kernels])
    launched = np.searchsorted(calls, edges[1:-1])
    if not len(launched) or launched[0] == 0:
        return None
    moved = np.concatenate((edges[:1], ends[launched - 1], edges[-1:]))
    return moved if bool((np.diff(moved) > 0).all()) else None
