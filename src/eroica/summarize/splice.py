"""A trace with some of its iterations only, as if these had followed each other.

What runs across the edge of a stretch that is left out counts as far as it lies in what is kept. Order and nesting of
events stay as they were.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from eroica.summarize.iterations import Iterations
from eroica.summarize.sweep import Times
from eroica.trace.table import EventTable


def splice(events: EventTable, found: Iterations, chosen: Collection[int]) -> tuple[EventTable, Iterations]:
    """Cut the trace and its iterations to the chosen ones; both stay as they are where none of those was found.

    Args:
        events: The whole trace.
        found: Its iterations.
        chosen: Numbers of those wanted; the ones kept are numbered on from the first of them.
    """
    kept_I = np.isin(found.first + np.arange(len(found.edges_ns) - 1), list(chosen))
    if not kept_I.any():
        return events, found
    length_I = np.diff(found.edges_ns)
    edges = found.edges_ns[0] + np.append(0, np.cumsum(np.where(kept_I, length_I, 0)))

    def place_of(time: Times) -> NDArray[np.intp]:
        return np.asarray(np.clip(np.searchsorted(found.edges_ns, time, side="right") - 1, 0, len(kept_I) - 1))

    def moved(time: Times) -> Times:
        at = place_of(time)
        within = np.clip(time - found.edges_ns[at], 0, length_I[at])
        return np.asarray(edges[at] + np.where(kept_I[at], within, 0))

    start, end = moved(events.start_ns), moved(events.end_ns)
    is_moment = (events.start_ns == events.end_ns) & kept_I[place_of(events.start_ns)]
    rows = np.flatnonzero((end > start) | is_moment)
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    place = {int(row): at for at, row in enumerate(rows.tolist())}
    table = replace(
        events,
        name=events.name[rows],
        category=events.category[rows],
        thread=events.thread[rows],
        start_ns=start[rows],
        end_ns=end[rows],
        link=events.link[rows] if len(events.link) else events.link,
        collectives={place[row]: said for row, said in events.collectives.items() if row in place},
    )
    first = found.first + int(np.argmax(kept_I))
    steps = (first, first + int(kept_I.sum()) - 1) if found.steps[0] >= 0 else found.steps
    return table, replace(found, edges_ns=np.append(edges[0], edges[1:][kept_I]), first=first, steps=steps)
