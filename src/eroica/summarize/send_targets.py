"""Whom the sends and receives of a window go to, where only their order tells: gloo's, in groups of more than two.

Calls name the other side if their inputs are recorded, which makes the end of a trace cost 2.7 times as much (3.6 s
instead of 1.3 s, four ranks on two cores). So only the probe, one iteration right before the window, records them. What
an iteration sends and receives follows from its code: an iteration of the window with the same calls in the same order
is taken to go to the same sides. (Who takes turns with its partners, as some ways of gossip do, is misread.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from eroica.model.window import Capture
from eroica.summarize.clock import WallClock
from eroica.trace.arguments import DIRECT_CALLS
from eroica.trace.kineto import read_trace
from eroica.trace.table import Category, CollectiveArguments, EventTable

_ONE_ITERATION = 2  # boundaries


def read_sides(path: Path) -> tuple[CollectiveArguments, ...]:
    """Read the other sides of the sends and receives of an iteration, in order; empty unless each of them tells it.

    Args:
        path: Trace of the iteration.

    Raises:
        InputError: It cannot be read.
    """
    probe = read_trace(path)
    told = [probe.collectives.get(row) for row in _calls(probe)]
    known = tuple(replace(one, elements=0) for one in told if one is not None)  # the next ones may be longer
    return known if len(known) == len(told) else ()


def name_sides(events: EventTable, sides: Sequence[CollectiveArguments], capture: Capture) -> EventTable:
    """The window's events, with what the calls of one iteration said on its own calls.

    Args:
        events: Of the window.
        sides: Of `read_sides`.
        capture: Of the window.
    """
    if not sides or len(capture.boundaries_ns) < _ONE_ITERATION:
        return events
    rows = _calls(events)
    edges = WallClock(capture.clocks).from_monotonic(capture.boundaries_ns)
    found = dict(events.collectives)
    for first, last in pairwise(np.searchsorted(events.start_ns[rows], edges).tolist()):
        found.update(_alike(events, rows[first:last], sides))
    return replace(events, collectives=found)


def _calls(events: EventTable) -> list[int]:
    """Rows of sends and receives, in order."""
    chosen = events.names_where([name in DIRECT_CALLS for name in events.strings])
    return [int(row) for row in np.flatnonzero(chosen & (events.category == Category.OPERATOR))]


def _alike(
    events: EventTable, rows: Sequence[int], sides: Sequence[CollectiveArguments]
) -> dict[int, CollectiveArguments]:
    """Give an iteration's calls the arguments of the probe's calls; none if the calls are others."""
    kinds = [DIRECT_CALLS[events.name_of(row)] for row in rows]
    return dict(zip(rows, sides, strict=True)) if kinds == [one.name for one in sides] else {}
