"""Build the verdict's list of waits in a window: all waiting, and the largest parts of it by name.

Array suffixes: W workers, E edges. All times are microseconds until they are written down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.localize import Suspects
from eroica.localize.ledger import DirectWaits
from eroica.model.verdict import WaitEdge, Waits

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: Workers that are named in each list.
MOST_NAMED = 64
#: Pairs of workers that are listed.
MOST_EDGES = 200


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
        for edge in np.argsort(-direct.wait_us, kind="stable")[:MOST_EDGES].tolist()
    )
    return tuple(edge for edge in listed if edge.per_iteration_ms > 0)
