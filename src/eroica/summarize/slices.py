"""A long trace in slices of time, so that summarizing takes memory by the slice and not by the trace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.summarize.sweep import Times
from eroica.trace.table import EventTable

#: Events that start in one slice; these take some 50 MB while they are worked on.
MOST_EVENTS = 200_000


class Slice(NamedTuple):
    """Part of a window.

    Attributes:
        events: What touches it, still in order of start.
        rows: Rows of these events in the whole table. int64 [events].
        start_ns: Its start.
        end_ns: Its end, the next one's start.
    """

    events: EventTable
    rows: NDArray[np.int64]
    start_ns: int
    end_ns: int


def cut_slices(events: EventTable, window: tuple[int, int], most: int = MOST_EVENTS) -> Iterator[Slice]:
    """Slices of a window, in order, without gaps.

    Args:
        events: The whole trace.
        window: Start and end.
        most: Events that start in one slice.
    """
    most = max(most, 1)  # of a table without events
    first, last = np.searchsorted(events.start_ns, window)
    cuts = np.unique(events.start_ns[first + most : last : most])
    borders = [window[0], *(cut for cut in cuts.tolist() if window[0] < cut < window[1]), window[1]]
    for low, high in itertools.pairwise(borders):
        begin, end = np.searchsorted(events.start_ns, (low, high))
        still_open = np.flatnonzero(events.end_ns[:begin] > low)
        rows = np.concatenate((still_open, np.arange(begin, end)))
        whole = len(rows) == len(events)
        yield Slice(events if whole else _select(events, rows), rows, low, high)


def _select(events: EventTable, rows: Times) -> EventTable:
    """The table of some rows, with the names that they use; arguments of collectives are left behind."""
    used = np.zeros(len(events.strings), dtype=np.bool_)
    used[events.name[rows]] = True
    numbers = np.cumsum(used, dtype=np.int32) - 1
    return replace(
        events,
        strings=tuple(events.strings[number] for number in np.flatnonzero(used).tolist()),
        name=numbers[events.name[rows]],
        category=events.category[rows],
        thread=events.thread[rows],
        start_ns=events.start_ns[rows],
        end_ns=events.end_ns[rows],
        link=events.link[rows] if len(events.link) else events.link,
        collectives={},
    )
