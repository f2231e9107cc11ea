"""A window run once more: its event graph with other own times, everything else as it was.

Max-plus: a worker is ahead of its own progress by the largest delay that any meeting has put on it so far; a meeting is
over when the last has come, plus its transfer.

Source:
    "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), section 3.2, simulates the
    graph of operators with fixed durations. Deviations: only matched executions are nodes, everything between them is
    own time of the worker, and clocks of workers are not compared.

Time that a worker loses seldom lies evenly in an iteration: a slow loader lies before its first collective. Only the
stretch with the lost time makes others wait. Peers show which stretch it is: workers of the role that come to the same
meetings in the same order and spend less before this one.

Array suffixes: E executions, M meetings, W workers, J boundaries, I iterations, S stretches in order of worker and
clock, C cells (a worker in an iteration). N workers come to the same meetings in an iteration, or N steps are those of
all main lines. Each stretch ends with the beginning of an execution or the end of an iteration. All times are
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.excess import median_of_others
from eroica.localize.graph import EventGraph, apart_of, iteration_of

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: A replay that misses the measured time by more than this share is not used.
TOLERANCE = 0.05
#: Of the factors by which an order of meetings is turned into one number; which they are does not matter.
_SEED = 5
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


class Stretches(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Stretches of a graph.

    Attributes:
        length_S: Own time. float64 [S].
        excess_S: What of it the peers do not need, 0 where nobody can be compared. float64 [S].
        cell_S: Worker and iteration, as one number: worker * iterations + iteration. intp [S].
        of_E: The stretch that ends with the beginning of each execution. intp [E].
        of_edge_WJ: The stretch that ends at each boundary; -1 at the first. intp [W, J].
    """

    length_S: Floats
    excess_S: Floats
    cell_S: Places
    of_E: Places
    of_edge_WJ: Places


class Replay(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A window that can be run again.

    Attributes:
        graph: What depends on what.
        rounds: In which order it is worked out.
        stretches: Own time of workers between the meetings.
        start_W: When each worker's window begins, on an axis that the meetings themselves give. float64 [W].
        iteration_I: Iteration times with nothing changed, mean over workers. float64 [I].
        error: By how much these miss the measured ones together, a fraction.
    """

    graph: EventGraph
    rounds: tuple[Round, ...]
    stretches: Stretches
    start_W: Floats
    iteration_I: Floats
    error: float

    def iterations_without(self, less_WI: Floats, common_WI: Floats, held_W: Floats | None = None) -> Floats:
        """Iteration times, mean over workers, with less own time and shorter transfers. float64 [I].

        Args:
            less_WI: Own time taken away from each worker's iterations, at most all of it. float64 [W, I].
            common_WI: How much of that is taken from the worker's peers, too: that part comes from all of its own time
                alike, the rest first from where the peers need less. float64 [W, I].
            held_W: Share of the time in which workers are held today: their meetings' transfers lack it. float64 [W].
        """
        length_S = shortened(self.stretches, less_WI.ravel(), common_WI.ravel())
        transfer_M = self.graph.transfer_M
        if held_W is not None:
            held_E = held_W[self.graph.worker_E[self.graph.members]]
            transfer_M = transfer_M * (1 - np.maximum.reduceat(held_E, self.graph.first_M[:-1]))
        edge_WJ = _run(self.graph, self.rounds, self.start_W, self.stretches, length_S, transfer_M)
        return np.asarray(np.diff(edge_WJ, axis=1).mean(axis=0))


def prepare_replay(graph: EventGraph, roles_W: Places | None = None) -> Replay | None:
    """A replay with what it misses; None where workers would wait for each other in a circle.

    Windows of different workers do not begin at one moment. Run from a common start, workers fall into step by
    themselves, and then each one's distance from its own clock is its start.

    Args:
        graph: The window.
        roles_W: Role of each worker, to tell where one of them spends more than its peers. intp [W].
    """
    rounds = schedule(graph)
    if rounds is None:
        return None
    stretches = find_stretches(graph, roles_W)
    start_W = np.zeros(graph.edge_WJ.shape[0])
    edge_WJ = _run(graph, rounds, start_W, stretches, stretches.length_S, graph.transfer_M)
    off_WJ = (edge_WJ - graph.edge_WJ)[:, max(graph.edge_WJ.shape[1] // 2, 1) :]
    start_W = np.median(off_WJ, axis=1)
    start_W = start_W - start_W.min()
    edge_WJ = _run(graph, rounds, start_W, stretches, stretches.length_S, graph.transfer_M)
    measured = float(np.diff(graph.edge_WJ, axis=1).mean(axis=0).sum())
    iteration_I = np.diff(edge_WJ, axis=1).mean(axis=0)
    error = abs(float(iteration_I.sum()) / measured - 1) if measured > 0 else 1.0
    return Replay(
        graph=graph, rounds=rounds, stretches=stretches, start_W=start_W, iteration_I=iteration_I, error=error
    )


def _run(
    graph: EventGraph,
    rounds: tuple[Round, ...],
    start_W: Floats,
    stretches: Stretches,
    length_S: Floats,
    transfer_M: Floats,
) -> Floats:
    """Compute the time at which each worker passes its boundaries. float64 [W, J]."""
    post_E, need_E, edge_WJ = progress_with(graph, stretches, length_S)
    delay_W = start_W.copy()
    came_E = np.empty(post_E.size)
    over_M = np.empty(transfer_M.size)
    delay_E = np.empty(post_E.size)
    over_of_E = bool((graph.before_E >= 0).any())
    worker_E, meeting_E, before_E = graph.worker_E, graph.meeting_E, graph.before_E
    for one in rounds:
        came_E[one.comes] = post_E[one.comes] + delay_W[worker_E[one.comes]]
        if over_of_E:
            queued = one.enters[before_E[one.enters] >= 0]
            came_E[queued] = np.maximum(came_E[queued], over_M[meeting_E[before_E[queued]]])
        if one.over.size:
            over_M[one.over] = np.maximum.reduceat(came_E[one.members], one.begins) + transfer_M[one.over]
        who = worker_E[one.needs]
        delay_W[who] = np.maximum(delay_W[who], over_M[meeting_E[one.needs]] - need_E[one.needs])
        delay_E[one.needs] = delay_W[who]
    return edge_WJ + _delay_at_edges(graph, delay_E, start_W)


def _delay_at_edges(graph: EventGraph, delay_E: Floats, start_W: Floats) -> Floats:
    """Delay of each worker at its boundaries: that of the last execution needed before. float64 [W, J]."""
    needed = np.flatnonzero(graph.needed_E)
    order = needed[np.lexsort((graph.need_at_E[needed], graph.worker_E[needed]))]
    apart = 2 * (float(graph.edge_WJ.max()) + 1.0)
    keys = graph.need_at_E[order] + graph.worker_E[order] * apart
    rows = np.arange(graph.edge_WJ.shape[0])[:, None]
    at_WJ = np.searchsorted(keys, graph.edge_WJ + rows * apart, side="right") - 1
    first_W = np.searchsorted(graph.worker_E[order], np.arange(graph.edge_WJ.shape[0]))
    if not order.size:
        return np.broadcast_to(start_W[:, None], graph.edge_WJ.shape)
    found = delay_E[order][np.maximum(at_WJ, 0)]
    return np.where(at_WJ >= first_W[:, None], found, start_W[:, None])


# --- the order of the meetings, in rounds that are worked out for all workers at once ---
#
# In each round every worker that is not held up takes one step of its main line: it comes to a meeting, or leaves one
# that is over, or both. The order depends on the graph alone, so it is found once and serves all replays.


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


# --- own time of workers between their meetings, and where in it time is to be taken away ---


def find_stretches(graph: EventGraph, roles_W: Places | None = None) -> Stretches:
    """Cut all own time into stretches and compare them among workers of a role.

    Args:
        graph: The window.
        roles_W: Role of each worker; None = nobody is compared.
    """
    workers, iterations, size = graph.edge_WJ.shape[0], graph.iterations, graph.worker_E.size
    whom = np.concatenate([graph.worker_E, np.repeat(np.arange(workers), iterations)])
    iteration = np.concatenate(
        [iteration_of(graph.worker_E, graph.start_E, graph.edge_WJ), np.tile(np.arange(iterations), workers)]
    )
    time = np.concatenate([graph.start_E, graph.edge_WJ[:, 1:].ravel()])
    order = np.lexsort((np.arange(whom.size) >= size, time, iteration, whom))
    place = np.empty(order.size, dtype=np.intp)
    place[order] = np.arange(order.size)
    of_edge_WJ = np.full(graph.edge_WJ.shape, -1, dtype=np.intp)
    of_edge_WJ[:, 1:] = place[size:].reshape(workers, iterations)
    stretches = Stretches(
        length_S=_lengths(graph, order, whom),
        excess_S=np.zeros(order.size),
        cell_S=(whom * iterations + iteration)[order].astype(np.intp),
        of_E=place[:size],
        of_edge_WJ=of_edge_WJ,
    )
    return stretches if roles_W is None else _compared(graph, stretches, roles_W)


def _lengths(graph: EventGraph, order: Places, whom: Places) -> Floats:
    """Own time of each stretch, from beginnings of executions and ends of iterations in order. float64 [S]."""
    progress = np.concatenate([graph.post_E, graph.progress_WJ[:, 1:].ravel()])[order]
    first_W = np.searchsorted(whom[order], np.arange(graph.edge_WJ.shape[0]))
    length_S = np.diff(progress, prepend=0.0)
    length_S[first_W] = progress[first_W] - graph.progress_WJ[:, 0]
    return np.asarray(np.maximum(length_S, 0.0))


def shortened(stretches: Stretches, less_C: Floats, common_C: Floats) -> Floats:
    """Lengths if cells lacked time: first what the peers do not need of it, then of all stretches alike.

    Args:
        stretches: As they are.
        less_C: Time to be taken away. float64 [C].
        common_C: Part of it that the peers are to lack as well: it is taken of all stretches alike. float64 [C].

    Returns:
        New lengths. float64 [S].
    """
    cell, cells = stretches.cell_S, less_C.size

    def part(wanted_C: Floats, from_S: Floats) -> Floats:
        held_C = np.bincount(cell, weights=from_S, minlength=cells)
        share_C = np.divide(np.minimum(wanted_C, held_C), held_C, out=np.zeros(cells), where=held_C > 0)
        return np.asarray(from_S * share_C[cell])

    own_C = np.maximum(less_C - common_C, 0.0)
    found_S = part(own_C, stretches.excess_S)
    left_S = stretches.length_S - found_S
    rest_C = less_C - np.bincount(cell, weights=found_S, minlength=cells)
    return np.maximum(left_S - part(np.maximum(rest_C, 0.0), left_S), 0.0)


def progress_with(graph: EventGraph, stretches: Stretches, length_S: Floats) -> tuple[Floats, Floats, Floats]:
    """Progress when executions begin, when they are needed, and at boundaries, with other lengths.

    Returns:
        float64 [E], float64 [E], float64 [W, J].
    """
    base_W = graph.progress_WJ[:, 0]
    iterations = graph.iterations
    was_S, now_S = _running(stretches, stretches.length_S, base_W), _running(stretches, length_S, base_W)
    edge_WJ = np.where(stretches.of_edge_WJ >= 0, now_S[stretches.of_edge_WJ], base_W[:, None])
    whom_S = stretches.cell_S // iterations
    workers = base_W.size
    apart = max(apart_of(graph.edge_WJ), apart_of(edge_WJ))
    at = np.argsort(np.concatenate([np.arange(workers), whom_S]), kind="stable")
    knots = np.concatenate([base_W + np.arange(workers) * apart, was_S + whom_S * apart])[at]
    values = np.concatenate([base_W, now_S])[at]
    need_E = np.interp(graph.need_E + graph.worker_E * apart, knots, values)
    return now_S[stretches.of_E], need_E, edge_WJ


def _running(stretches: Stretches, length_S: Floats, base_W: Floats) -> Floats:
    """Progress at the end of each stretch. float64 [S]."""
    iterations = stretches.of_edge_WJ.shape[1] - 1
    whom_S = stretches.cell_S // iterations
    total = np.concatenate([[0.0], np.cumsum(length_S)])
    first_W = np.searchsorted(whom_S, np.arange(base_W.size))
    return np.asarray(total[1:] - total[first_W][whom_S] + base_W[whom_S])


def _compared(graph: EventGraph, stretches: Stretches, roles_W: Places) -> Stretches:
    """Add to the stretches the time that peers of a role do not need."""
    excess_S = np.zeros_like(stretches.length_S)
    for places_NK in _alike(graph, stretches, roles_W):
        values_KN = stretches.length_S[places_NK].T
        usual_KN = median_of_others(values_KN, np.zeros(places_NK.shape[0], dtype=np.intp))
        excess_S[places_NK] = np.maximum(values_KN - usual_KN, 0.0).T
    return msgspec.structs.replace(stretches, excess_S=excess_S)


def _alike(graph: EventGraph, stretches: Stretches, roles_W: Places) -> Iterator[Places]:
    """Stretches of workers of a role that come to the same meetings in an iteration, in their order. intp [N, K]."""
    workers, iterations = graph.edge_WJ.shape[0], graph.iterations
    count_C = np.bincount(stretches.cell_S, minlength=workers * iterations)
    first_C = np.cumsum(count_C) - count_C
    number_S = np.arange(stretches.cell_S.size) - first_C[stretches.cell_S]
    what_S = np.zeros(stretches.cell_S.size)
    what_S[stretches.of_E] = 2.0 * np.diff(graph.first_M)[graph.meeting_E] + graph.needed_E
    noise = np.random.default_rng(_SEED).random(int(count_C.max(initial=1)))
    sign_C = np.bincount(stretches.cell_S, weights=np.round(what_S * noise[number_S], 9), minlength=count_C.size)
    keys = np.stack([np.tile(np.arange(iterations), workers), np.repeat(roles_W, iterations), count_C, sign_C.round(6)])
    order = np.lexsort(keys)
    others = np.flatnonzero((np.diff(keys[:, order], axis=1) != 0).any(axis=0)) + 1
    for cells in np.split(order, others):
        if cells.size > 1:
            yield first_C[cells][:, None] + np.arange(count_C[cells[0]])
