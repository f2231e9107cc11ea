"""The event graph of a window: what each worker does by itself, and where it meets others.

Of a worker's main line only its own progress is kept: its own clock less the time it stood waiting. A meeting is one
matched execution (a receive is one of two workers). A worker comes to it at some progress and needs it to be over at
some later progress; in between it goes on. Clocks of workers are never compared.

Array suffixes: E executions (one worker in one meeting) in order of worker and end, M meetings, W workers, J boundaries
of iterations, K matched executions of a block. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
Flags = NDArray[np.bool_]
#: Executions that one graph holds at most; of longer windows the last iterations are taken.
MOST_EXECUTIONS = 1_000_000
#: With more than this in a single iteration there is none.
MOST_AT_ONCE = 2_000_000
#: Waiting that no execution explains is looked for only if it is more than this share of all own time: rounded
#: durations leave about as much.
_LEAST_UNRECORDED = 0.002
#: Executions of one worker at most: each costs a round of array operations.
MOST_OF_ONE = 8_000
#: Times that differ by less are the same: online, ends travel in steps of 8 microseconds.
_SAME_US = 10.0


class EventGraph(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Own progress of all workers with the meetings that hold it up; lives in memory only.

    Attributes:
        first: First iteration it holds, counted from the fleet's first common one.
        worker_E: Who. intp [E].
        meeting_E: In which meeting. intp [E].
        start_E: Own clock when the execution began, from the first boundary. float64 [E].
        end_E: And when it ended. float64 [E].
        critical_E: Its part on the critical path. float64 [E].
        post_E: Own progress when it began. float64 [E].
        need_E: Own progress up to which the main line got before it needed it to be over. float64 [E].
        need_at_E: Own clock at that moment. float64 [E].
        needed_E: Whether the worker waits for the others at all. bool [E].
        before_E: Execution that this one queued behind, -1 = none. intp [E].
        transfer_M: float64 [M].
        edge_WJ: Boundaries on the own clock. float64 [W, J].
        progress_WJ: Own progress at them. float64 [W, J].
        members: Executions of each meeting, meeting by meeting. intp [E].
        first_M: Place of each meeting's first in `members`; one more at the end. intp [M + 1].
    """

    first: int
    worker_E: Places
    meeting_E: Places
    start_E: Floats
    end_E: Floats
    critical_E: Floats
    post_E: Floats
    need_E: Floats
    need_at_E: Floats
    needed_E: Flags
    before_E: Places
    transfer_M: Floats
    edge_WJ: Floats
    progress_WJ: Floats
    members: Places
    first_M: Places

    @property
    def iterations(self) -> int:
        """Iterations it holds."""
        return int(self.edge_WJ.shape[1]) - 1


class Meetings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Matched executions with their places in time. E of them, in M meetings.

    Attributes:
        worker: Index of the worker. intp [E].
        meeting: Number of the meeting. intp [E].
        group: Number of the process group: executions of one worker in one group queue behind each other. intp [E].
        team: Number of the set of workers that is in step after it. intp [E].
        duration: float64 [E].
        critical: Critical part of it. float64 [E].
        end: On the worker's own clock, from the start of its window. float64 [E].
        waits: Whether the worker waits for the others; else it leaves once it is done itself. bool [E].
        leads: It is a sender's part of a receive: the sender is not known to wait. bool [E].
        wait: Critical waiting as it is judged. float64 [E].
        share: The worker's share of the blame. float64 [E].
        column: Iteration that the worker counts it in, -1 = none. intp [E].
        transfer: What the meeting takes once all have come. float64 [M].
    """

    worker: Places
    meeting: Places
    group: Places
    team: Places
    duration: Floats
    critical: Floats
    end: Floats
    waits: Flags
    leads: Flags
    wait: Floats
    share: Floats
    column: Places
    transfer: Floats

    def at(self, chosen: Places | Flags) -> Meetings:
        """Return some of the executions, or all in another order."""
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return Meetings(**columns, transfer=self.transfer)


_COLUMNS = tuple(name for name in Meetings.__struct_fields__ if name != "transfer")


def join_meetings(parts: Sequence[Meetings]) -> Meetings | None:
    """Join executions of several groups; None if there are none."""
    if not parts:
        return None
    first = np.cumsum([0, *(part.transfer.size for part in parts)])
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    columns["meeting"] += np.repeat(first[:-1], [part.worker.size for part in parts])
    return Meetings(**columns, transfer=np.concatenate([part.transfer for part in parts]))


def build_graph(
    flat: Meetings, edge_WJ: Floats, whole_from: int = 0, wait_WI: Floats | None = None
) -> EventGraph | None:
    """Put the meetings of a window in order.

    Args:
        flat: All matched executions whose ends are known.
        edge_WJ: Boundaries of the common iterations on each worker's own clock.
        whole_from: First iteration whose executions all got room in the patterns.
        wait_WI: Critical time in any communication in each of these iterations: what no execution here explains of it
            is no own time either. Without it all else is own time.

    Returns:
        The graph of as many of the last iterations as are whole and the bounds allow; None where there is none.
    """
    if not flat.worker.size or edge_WJ.shape[1] < 2:
        return None
    first = max(whole_from, _first_that_fits(flat, edge_WJ))
    if first >= edge_WJ.shape[1] - 1:
        return None
    edge_WJ = edge_WJ[:, first:]
    flat = _inside(flat, edge_WJ)
    if flat.worker.size == 0:
        return None
    flat = msgspec.structs.replace(flat, end=flat.end - edge_WJ[flat.worker, 0])
    graph = _graph(first, flat, edge_WJ - edge_WJ[:, :1])
    return graph if wait_WI is None else _less_unrecorded(graph, wait_WI[:, first:])


def _first_that_fits(flat: Meetings, edge_WJ: Floats) -> int:
    """First iteration from which on the executions are few enough. The last one is always taken."""
    iterations = int(edge_WJ.shape[1]) - 1
    per_iteration = np.bincount(iteration_of(flat.worker, flat.end - _SAME_US, edge_WJ), minlength=iterations)
    most_of_one = int(np.bincount(flat.worker).max()) / iterations
    later = np.cumsum(per_iteration[::-1])[::-1]
    allowed = np.flatnonzero(later <= MOST_EXECUTIONS)
    by_total = int(allowed[0]) if allowed.size else iterations - 1
    return max(by_total, iterations - max(int(MOST_OF_ONE / max(most_of_one, 1e-9)), 1))


def _inside(flat: Meetings, edge_WJ: Floats) -> Meetings:
    """Meetings that end between the first and the last boundary on all members."""
    slack = 1e-3 * (edge_WJ[:, -1] - edge_WJ[:, 0])
    worker = flat.worker
    inside = (flat.end > edge_WJ[worker, 0]) & (flat.end <= edge_WJ[worker, -1] + slack[worker])
    whole_M = np.ones(flat.transfer.size, dtype=np.bool_)
    whole_M[flat.meeting[~inside]] = False
    kept = whole_M[flat.meeting]
    number_M = np.cumsum(whole_M) - 1
    return msgspec.structs.replace(flat.at(kept), meeting=number_M[flat.meeting[kept]], transfer=flat.transfer[whole_M])


def _graph(first: int, flat: Meetings, edge_WJ: Floats) -> EventGraph:
    order = np.lexsort((flat.end, flat.worker))
    worker, end, duration = flat.worker[order], np.minimum(flat.end, edge_WJ[flat.worker, -1])[order], flat.duration
    start = np.maximum(end - duration[order], 0.0)
    waits = flat.waits[order]
    critical = np.minimum(flat.critical[order], end - start)
    held = np.where(waits, critical, 0.0)
    line = MainLine(worker, end, held, edge_WJ)
    following = iteration_of(worker, end - _SAME_US, edge_WJ) + 1
    holds = held > 0
    over = edge_WJ[worker, following]
    everybody = np.repeat(np.arange(edge_WJ.shape[0]), edge_WJ.shape[1])
    progress_WJ = line.progress(everybody, edge_WJ.ravel(), after=True).reshape(edge_WJ.shape)
    need_at = np.where(holds, end, over)
    by_meeting = np.argsort(flat.meeting[order], kind="stable")
    counts = np.bincount(flat.meeting, minlength=flat.transfer.size)
    return EventGraph(
        first=first,
        worker_E=worker,
        meeting_E=flat.meeting[order],
        start_E=start,
        end_E=end,
        critical_E=critical,
        post_E=line.progress(worker, start),
        need_E=np.where(holds, line.at_end, progress_WJ[worker, following]),
        need_at_E=need_at,
        needed_E=waits,
        before_E=_queued_behind(worker, flat.group[order], start, end, waits, need_at),
        transfer_M=flat.transfer,
        edge_WJ=edge_WJ,
        progress_WJ=progress_WJ,
        members=by_meeting.astype(np.intp),
        first_M=np.concatenate([[0], np.cumsum(counts)]).astype(np.intp),
    )


def _less_unrecorded(graph: EventGraph, wait_WI: Floats) -> EventGraph:
    """Take waiting that no execution explains out of the longest stretches of own time."""
    worker, size = graph.worker_E, graph.worker_E.size
    workers, iterations = wait_WI.shape
    cell_E = worker * iterations + iteration_of(worker, graph.end_E - _SAME_US, graph.edge_WJ)
    explained = np.bincount(cell_E, weights=graph.critical_E, minlength=wait_WI.size)
    spare_C = np.maximum(wait_WI.ravel() - explained, 0.0)
    if float(spare_C.sum()) <= _LEAST_UNRECORDED * float((graph.progress_WJ[:, -1] - graph.progress_WJ[:, 0]).sum()):
        return graph
    whom = np.concatenate([worker, worker, np.repeat(np.arange(workers), iterations + 1)])
    time = np.concatenate([graph.start_E, graph.need_at_E, graph.edge_WJ.ravel()])
    progress = np.concatenate([graph.post_E, graph.need_E, graph.progress_WJ.ravel()])
    order = np.lexsort((progress, time, whom))
    length = np.diff(progress[order], prepend=0.0)
    begins = np.searchsorted(whom[order], np.arange(workers))
    length[begins] = progress[order][begins]
    length = np.maximum(length, 0.0)
    cell = whom * iterations + iteration_of(whom, time, graph.edge_WJ)
    shorter = shorten_longest(length, cell[order], spare_C)
    total = np.cumsum(shorter)
    moved = np.empty(progress.size)
    moved[order] = total - (total[begins] - shorter[begins])[whom[order]]
    edges = moved[2 * size :].reshape(graph.progress_WJ.shape)
    return msgspec.structs.replace(graph, post_E=moved[:size], need_E=moved[size : 2 * size], progress_WJ=edges)


def shorten_longest(length_S: Floats, cell_S: Places, spare_C: Floats) -> Floats:
    """Stretches of own time cut to a common length in each cell, such that what is cut off adds up to a given time.

    Waiting that no matched execution explains is long and rare, so it is looked for in the longest stretches.

    Args:
        length_S: Lengths. float64 [S].
        cell_S: Which cell each belongs to. intp [S].
        spare_C: Time to be cut off in each cell; at most all of it is. float64 [C].

    Returns:
        New lengths. float64 [S].
    """
    cells = spare_C.size
    order = np.lexsort((-length_S, cell_S))
    length, cell = length_S[order], cell_S[order]
    first_C = np.searchsorted(cell, np.arange(cells))
    total = np.concatenate([[0.0], np.cumsum(length)])
    rank = np.arange(length.size) - first_C[cell] + 1
    above = total[1:] - total[first_C[cell]]
    # With the k longest cut to the k-th's length this much is cut off; it rises with k.
    enough = above - rank * length <= spare_C[cell]
    count_C = np.bincount(cell, weights=enough, minlength=cells).astype(np.intp)
    taken_C = total[np.minimum(first_C + count_C, length.size)] - total[np.minimum(first_C, length.size)]
    level_C = np.maximum(taken_C - spare_C, 0.0) / np.maximum(count_C, 1)
    level_C = np.where(spare_C > 0, level_C, np.inf)
    return np.minimum(length_S, level_C[cell_S])


def _queued_behind(worker: Places, group: Places, start: Floats, end: Floats, waits: Flags, need_at: Floats) -> Places:
    """Execution of the same group that was over before this one began, where the main line did not wait for it."""
    order = np.lexsort((start, group, worker))
    this, before = order[1:], order[:-1]
    same = (worker[this] == worker[before]) & (group[this] == group[before]) & waits[this] & waits[before]
    behind = same & (end[before] <= start[this] + _SAME_US) & (need_at[before] >= start[this] - _SAME_US)
    found = np.full(worker.size, -1, dtype=np.intp)
    found[this[behind]] = before[behind]
    return found


# --- own progress of workers by their own clocks: the clock less all time their main lines stood still ---


def iteration_of(worker_E: Places, time_E: Floats, edge_WJ: Floats) -> Places:
    """Iteration that moments of workers' own clocks lie in; a boundary belongs to the one before it. intp [E]."""
    apart = apart_of(edge_WJ)
    at = np.searchsorted((edge_WJ + rows_of(edge_WJ) * apart).ravel(), time_E + worker_E * apart, side="left") - 1
    return np.asarray(np.clip(at - worker_E * edge_WJ.shape[1], 0, edge_WJ.shape[1] - 2), dtype=np.intp)


def apart_of(edge_WJ: Floats) -> float:
    """More than any two times of one worker differ by: with it, times of all workers lie in one sorted array."""
    return 4.0 * float(np.abs(edge_WJ).max()) + 1e3


def rows_of(array: Floats) -> Floats:
    """Numbers of its rows. float64 [W, 1]."""
    return np.arange(array.shape[0], dtype=np.float64)[:, None]


class MainLine:
    """Own progress by own clock: the clock less all time stood still before.

    Attributes:
        at_end: Progress when each execution ended. float64 [E].
    """

    def __init__(self, worker: Places, end: Floats, held: Floats, edge_WJ: Floats) -> None:
        self._apart = apart_of(edge_WJ)
        self._worker, self._key = worker, end + worker * self._apart
        total = np.concatenate([[0.0], np.cumsum(held)])
        begin_W = np.searchsorted(worker, np.arange(edge_WJ.shape[0] + 1))
        self._begin_W = begin_W
        self._held = total[1:] - total[begin_W[worker]]
        # Parts of two executions that overlap may lie before the end of the one that ended first: move them there.
        plain = end - self._held + worker * self._apart
        back = np.minimum.accumulate(plain[::-1])[::-1]
        self.at_end = np.maximum(back - worker * self._apart, 0.0)

    def progress(self, worker: Places, time: Floats, after: bool = False) -> Floats:
        """Progress of workers at moments of their own clocks; `after` counts what ends just then as over."""
        at = np.searchsorted(self._key, time + worker * self._apart, side="right" if after else "left")
        at = np.clip(at, self._begin_W[worker], self._begin_W[worker + 1])
        has_next, has_last = at < self._begin_W[worker + 1], at > self._begin_W[worker]
        held = np.concatenate([self._held, [0.0]])
        ends = np.concatenate([self.at_end, [0.0]])
        found = time - np.where(has_last, held[at - 1], 0.0)
        found = np.where(has_next, np.minimum(found, ends[at]), found)
        return np.maximum(np.where(has_last, np.maximum(found, ends[at - 1]), found), 0.0)
