"""Build the verdict's list of waits in a window: all waiting, and the largest parts of it by name.

Array suffixes: W workers, E edges. All times are microseconds until they are written down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.localize.direct_waits import DirectWaits
from eroica.localize.suspects import Suspects
from eroica.model.verdict import WaitEdge, Waits

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: Workers that are named in each list.
MOST_NAMED = 64
#: Pairs of workers that are listed.
MOST_EDGES = 200
#: Where there are more, at most so many wait for the same one before others get room: else one worker that all others
#: wait for takes it all, and nobody sees whom it waits for itself.
_MOST_TOWARDS_ONE = 16
#: Edges among which those are looked for.
_MOST_WEIGHED = 50_000


def read_waits(suspects: Suspects) -> Waits | None:
    """Read the waiting per iteration; None where nobody was seen to wait for anybody."""
    arrivals, ranks = suspects.arrivals, suspects.fleet.ranks
    iterations = arrivals.waited_us.shape[1]
    total_us = float(arrivals.waited_us.sum())
    if not arrivals.executions or not iterations or total_us <= 0:
        return None
    return Waits(
        total_ms=_ms(total_us / iterations),
        withheld_ms=_ms(arrivals.withheld_us / iterations),
        waited_ms=_largest(arrivals.waited_us.mean(axis=1), ranks),
        blamed_ms=_largest(arrivals.blamed_us.mean(axis=1), ranks),
        edges=_edges(arrivals.direct, ranks, iterations),
        workers=len(ranks),
    )


def _ms(value_us: float) -> float:
    return round(value_us / 1e3, 4)


def _largest(value_W: Floats, ranks: Sequence[int]) -> dict[int, float]:
    """Return the milliseconds of the workers with most, in falling order."""
    order = np.argsort(-value_W, kind="stable")[:MOST_NAMED]
    named = {ranks[worker]: _ms(float(value_W[worker])) for worker in order.tolist()}
    return {rank: value for rank, value in named.items() if value > 0}


def _edges(direct: DirectWaits, ranks: Sequence[int], iterations: int) -> tuple[WaitEdge, ...]:
    """List the largest edges in falling order."""
    listed = (
        WaitEdge(
            waiter=ranks[int(direct.waiter[edge])],
            on=ranks[int(direct.on[edge])],
            per_iteration_ms=_ms(float(direct.wait_us[edge]) / iterations),
        )
        for edge in choose(direct.on, direct.wait_us).tolist()
    )
    return tuple(edge for edge in listed if edge.per_iteration_ms > 0)


def choose(on_E: Places, weight_E: Floats) -> Places:
    """Choose the edges that are listed, the heaviest first.

    Args:
        on_E: Worker that each edge leads to. intp [E].
        weight_E: Weight of each edge. float64 [E].
    """
    order = _heaviest(weight_E)
    if order.size <= MOST_EDGES:
        return order
    among = _place_among_equals(on_E[order])
    first = order[among < _MOST_TOWARDS_ONE][:MOST_EDGES]
    rest = order[among >= _MOST_TOWARDS_ONE][: MOST_EDGES - first.size]
    chosen = np.concatenate([first, rest])
    return np.asarray(chosen[np.argsort(-weight_E[chosen], kind="stable")])


def _heaviest(weight_E: Floats) -> Places:
    """Order places by falling weight; of very many keep the first ones."""
    if weight_E.size <= _MOST_WEIGHED:
        return np.argsort(-weight_E, kind="stable")
    top = np.sort(np.argpartition(-weight_E, _MOST_WEIGHED)[:_MOST_WEIGHED])
    return np.asarray(top[np.argsort(-weight_E[top], kind="stable")])


def _place_among_equals(value_E: Places) -> Places:
    """Count the equal values before each one. intp [E]."""
    order = np.argsort(value_E, kind="stable")
    ordered = value_E[order]
    starts = np.searchsorted(ordered, ordered)
    places = np.empty(value_E.size, dtype=np.intp)
    places[order] = np.arange(value_E.size) - starts
    return places
