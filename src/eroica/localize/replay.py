"""A window run once more: its event graph with other own times, everything else as it was.

Max-plus: a worker is ahead of its own progress by the largest delay that any meeting has put on it so far; a meeting is
over when the last has come, plus its transfer.

Source:
    "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), section 3.2, simulates the
    graph of operators with fixed durations. Deviations: only matched executions are nodes, everything between them is
    own time of the worker, and clocks of workers are not compared.

Array suffixes: E executions, M meetings, W workers, J boundaries, I iterations. All times are microseconds.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.graph import EventGraph
from eroica.localize.schedule import Round, schedule
from eroica.localize.stretches import Stretches, find_stretches, progress_with, shortened

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: A replay that misses the measured time by more than this share is not used.
TOLERANCE = 0.05


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
