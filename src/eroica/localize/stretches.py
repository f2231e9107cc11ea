"""Measure own time of workers between their meetings, and find where in it time is to be taken away.

Time that a worker loses seldom lies evenly in an iteration: a slow loader lies before its first collective. Only the
stretch with the lost time makes others wait. Peers show which stretch it is: workers of the role that come to the same
meetings in the same order and spend less before this one.

Array suffixes: E executions, M meetings, W workers, J boundaries, I iterations, S stretches in order of worker and
clock, C cells (a worker in an iteration), N workers that come to the same meetings in an iteration. Each stretch ends
with the beginning of an execution or the end of an iteration. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.excess import median_of_others
from eroica.localize.graph import EventGraph
from eroica.localize.main_line import apart_of, iteration_of

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: Of the factors by which an order of meetings is turned into one number; which they are does not matter.
_SEED = 5


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
