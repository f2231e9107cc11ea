"""Build the verdict's list of waits of a job that stands still: names without times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import Waiting
from eroica.diagnosis.waits import MOST_EDGES, choose
from eroica.model.verdict import WaitEdge, Waits

#: Pairs that are looked at: of ten thousand who wait for a thousand the first ones say enough.
_MOST_LOOKED_AT = 50_000


def standing_waits(scene: Scene, waiting: Waiting) -> Waits | None:
    """List each waiting worker with those that have not come to its collective; None where no wait is known.

    Times are not told: a standstill has no iterations, and has not ended.
    """
    pairs = [pair for pair, _ in zip(_pairs(waiting), range(_MOST_LOOKED_AT), strict=False)]
    if not pairs:
        return None
    chosen = choose(np.asarray([on for _, on in pairs], dtype=np.intp), np.zeros(len(pairs)))
    edges = (pairs[place] for place in sorted(chosen.tolist()))
    return Waits(
        total_ms=0.0,
        withheld_ms=0.0,
        edges=tuple(WaitEdge(waiter=waiter, on=on, per_iteration_ms=0.0) for waiter, on in edges),
        workers=scene.heard,
        standstill=True,
    )


def _pairs(waiting: Waiting) -> Iterator[tuple[int, int]]:
    """List each worker that waits with each one it waits for, once."""
    missing = _missing(waiting)
    for waiter in sorted(waiting.waiters):
        seen = {waiter}
        for node in waiting.onward.get(waiter, ()):
            for other in (node,) if node >= 0 else missing[-1 - node]:
                if other not in seen:
                    seen.add(other)
                    yield waiter, other


def _missing(waiting: Waiting) -> list[tuple[int, ...]]:
    """List, for each meeting, the workers not there yet, or not at an earlier one of the same group; bounded."""
    missing: list[tuple[int, ...]] = []
    for meeting in waiting.meetings.items:
        before = missing[meeting.previous] if meeting.previous is not None else ()
        missing.append((*meeting.behind, *meeting.stalled, *before)[:MOST_EDGES])
    return missing
