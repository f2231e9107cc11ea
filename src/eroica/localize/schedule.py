"""Order the meetings of an event graph into rounds, so that each round is worked out for all workers at once.

In each round every worker that is not held up takes one step of its main line: it comes to a meeting, or leaves one
that is over, or both. The order depends on the graph alone, so it is found once and serves all replays.

Array suffixes: E executions, M meetings, W workers, N steps of all main lines.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.graph import EventGraph

Places = NDArray[np.intp]
_COMES, _NEEDS = 1, 2


class Round(msgspec.Struct, frozen=True, eq=False):
    """Steps of one round of the schedule, taken at once in this order.

    Attributes:
        comes: Executions that main lines come to.
        enters: Executions that count as arrived now: what they queued behind is over. Parts of `comes` if they queue
            behind nothing.
        over: Meetings that all have come to.
        members: Executions of these meetings.
        begins: Where each meeting's begin in `members`.
        needs: Executions that main lines need to be over, and are.
    """

    comes: Places
    enters: Places
    over: Places
    members: Places
    begins: Places
    needs: Places


def schedule(graph: EventGraph) -> tuple[Round, ...] | None:
    """Rounds in which everything can happen; None if workers would wait for each other in a circle."""
    return _Scheduler(graph).run()


class _Scheduler:
    def __init__(self, graph: EventGraph) -> None:
        self.graph = graph
        self.execution_N, self.kind_N, first_W = _steps(graph)
        self.at_W, self.last_W = first_W[:-1].copy(), first_W[1:]
        self.missing_M = np.diff(graph.first_M)
        self.over_M = np.zeros(self.missing_M.size, dtype=np.bool_)
        self.left_E = 1 + (graph.before_E >= 0).astype(np.intp)
        self.parked_E = np.zeros(graph.worker_E.size, dtype=np.bool_)
        self.after_E = np.full(graph.worker_E.size, -1, dtype=np.intp)
        behind = np.flatnonzero(graph.before_E >= 0)
        self.after_E[graph.before_E[behind]] = behind

    def run(self) -> tuple[Round, ...] | None:
        active = np.flatnonzero(self.at_W < self.last_W)
        freed = np.zeros(0, dtype=np.intp)
        rounds = []
        while active.size or freed.size:
            active, freed, one = self._one(active, freed)
            rounds.append(one)
        return tuple(rounds) if bool((self.at_W == self.last_W).all()) else None

    def _one(self, active: Places, freed: Places) -> tuple[Places, Places, Round]:
        """One round: workers that can go on, executions whose predecessor is over, and what happened."""
        step = self.at_W[active]
        execution, kind = self.execution_N[step], self.kind_N[step]
        comes = execution[(kind & _COMES) > 0]
        self.left_E[comes] -= 1
        enters = np.concatenate([comes[self.left_E[comes] == 0], freed])
        meeting = self.graph.meeting_E[enters]
        np.subtract.at(self.missing_M, meeting, 1)
        over = np.unique(meeting[self.missing_M[meeting] == 0])
        self.over_M[over] = True
        members, begins = _gather(self.graph, over)
        wants = (kind & _NEEDS) > 0
        goes = ~wants | self.over_M[self.graph.meeting_E[execution]]
        released = members[self.parked_E[members]]
        self.parked_E[released] = False
        self.parked_E[execution[~goes]] = True
        on = np.concatenate([active[goes], self.graph.worker_E[released]])
        self.at_W[on] += 1
        needs = np.concatenate([execution[goes & wants], released])
        following = self.after_E[members]
        following = following[following >= 0]
        self.left_E[following] -= 1
        return (
            on[self.at_W[on] < self.last_W[on]],
            following[self.left_E[following] == 0],
            Round(comes, enters, over, members, begins, needs),
        )


def _gather(graph: EventGraph, over: Places) -> tuple[Places, Places]:
    """Executions of some meetings, and where each meeting's begin."""
    first, count = graph.first_M[over], graph.first_M[over + 1] - graph.first_M[over]
    begins = np.concatenate([[0], np.cumsum(count)]).astype(np.intp)
    within = np.arange(int(begins[-1])) - np.repeat(begins[:-1], count)
    return graph.members[np.repeat(first, count) + within], begins[:-1]


def _steps(graph: EventGraph) -> tuple[Places, NDArray[np.int8], Places]:
    """Steps of all main lines in order of worker and own clock: execution, what it is, first step of each worker."""
    every = np.arange(graph.worker_E.size)
    needed = np.flatnonzero(graph.needed_E)
    execution = np.concatenate([every, needed])
    kind = np.repeat(np.asarray([_COMES, _NEEDS], dtype=np.int8), [every.size, needed.size])
    time = np.concatenate([graph.start_E, graph.need_at_E[needed]])
    order = np.lexsort((kind, time, graph.worker_E[execution]))
    execution, kind = execution[order], kind[order]
    together = np.flatnonzero((execution[1:] == execution[:-1]) & (kind[:-1] == _COMES))
    kind[together] = _COMES | _NEEDS
    kept = np.ones(execution.size, dtype=np.bool_)
    kept[together + 1] = False
    execution, kind = execution[kept], kind[kept]
    first_W = np.searchsorted(graph.worker_E[execution], np.arange(graph.edge_WJ.shape[0] + 1))
    return execution.astype(np.intp), kind, first_W.astype(np.intp)
