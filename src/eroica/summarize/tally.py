"""Sums over the slices of a window: critical time of functions, iterations and executions, counts and durations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.summarize.activity import Durations
from eroica.summarize.slices import Slice
from eroica.summarize.sweep import Layer, Times


@dataclass(frozen=True)
class Totals:
    """Counts and durations of executions. F functions.

    Attributes:
        count: int64 [F].
        total_ns: float64 [F].
        longest_ns: int64 [F].
    """

    count: NDArray[np.int64]
    total_ns: NDArray[np.float64]
    longest_ns: NDArray[np.int64]


class Tally:
    """Adds up what the slices of one window show.

    Args:
        edges_ns: Boundaries of the iterations, wall clock. int64 [I + 1].
        executions: How many collectives there were.
    """

    def __init__(self, edges_ns: Times, executions: int) -> None:
        self.edges_ns = edges_ns
        self.idle_ns = 0
        self.execution_ns = np.zeros(executions, dtype=np.int64)
        self._cells: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._totals = Totals(np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(0, np.int64))
        self._crossing: dict[tuple[int, int], int] = {}

    # --- critical time ---

    def add_segments(self, segments: Layer, collectives: Layer) -> None:
        """Add a slice's critical path; `collectives` says which functions' executions are counted apart."""
        idle = segments.function < 0
        self.idle_ns += int((segments.end - segments.start)[idle].sum())
        owned = segments.where(~idle)
        if not len(owned.start):
            return
        iterations = len(self.edges_ns) - 1
        begins = np.searchsorted(owned.start, self.edges_ns)
        iteration = np.repeat(np.arange(iterations), np.diff(begins))
        place = owned.function.astype(np.int64) * iterations + iteration
        length = (owned.end - owned.start).astype(np.float64)
        self._cells.append(_sums(place, length))
        mine = np.isin(owned.function, np.unique(collectives.function))
        if mine.any():
            sums = np.bincount(owned.execution[mine], weights=length[mine], minlength=len(self.execution_ns))
            self.execution_ns += np.rint(sums).astype(np.int64)

    def critical_ns(self, functions: int) -> NDArray[np.int64]:
        """Critical nanoseconds of functions 0..functions-1. int64 [F]."""
        total = np.zeros(functions, dtype=np.int64)
        for place, length in self._cells:
            np.add.at(total, place // (len(self.edges_ns) - 1), length)
        return total

    def per_iteration_ns(self, groups: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Critical nanoseconds in each iteration, of groups of functions.

        Args:
            groups: Group of each function, -1 for none. int64 [F].
            count: Groups.

        Returns:
            int64 [count, I].
        """
        iterations = len(self.edges_ns) - 1
        total = np.zeros((count, iterations), dtype=np.int64)
        for place, length in self._cells:
            group = groups[place // iterations]
            keep = group >= 0
            np.add.at(total, (group[keep], place[keep] % iterations), length[keep])
        return total

    # --- counts ---

    def add_durations(self, found: Durations, part: Slice | None = None) -> None:
        """Add executions; one that reaches over a slice's borders is counted when all are in."""
        if part is not None:
            row = found.row
            events = part.events
            crossing = (row >= 0) & ((events.start_ns[row] < part.start_ns) | (events.end_ns[row] > part.end_ns))
            self._remember(found, part, np.flatnonzero(crossing))
            found = Durations(found.function[~crossing], found.length_ns[~crossing], row[~crossing])
        self._totals = _added(self._totals, found.function, found.length_ns)

    def _remember(self, found: Durations, part: Slice, crossing: NDArray[np.int64]) -> None:
        for place in crossing.tolist():
            key = int(part.rows[found.row[place]]), int(found.function[place])
            self._crossing[key] = self._crossing.get(key, 0) + int(found.length_ns[place])

    def totals(self, functions: int) -> Totals:
        """Counts and durations of functions 0..functions-1."""
        function = np.array([function for _, function in self._crossing], dtype=np.int32)
        known = _added(self._totals, function, np.array(list(self._crossing.values()), dtype=np.int64))
        return _grown(known, functions)


def _sums(place: NDArray[np.int64], length: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct places and the sums of their lengths."""
    size = int(place.max(initial=0)) + 1
    if size <= 4 * len(place) + 1_000_000:
        sums = np.rint(np.bincount(place, weights=length)).astype(np.int64)
        used = np.flatnonzero(sums)
        return used, sums[used]
    places, inverse = np.unique(place, return_inverse=True)
    return places, np.rint(np.bincount(inverse, weights=length)).astype(np.int64)


def _grown(totals: Totals, functions: int) -> Totals:
    missing = functions - len(totals.count)
    if missing <= 0:
        return totals
    return Totals(
        np.pad(totals.count, (0, missing)),
        np.pad(totals.total_ns, (0, missing)),
        np.pad(totals.longest_ns, (0, missing)),
    )


def _added(totals: Totals, function: NDArray[np.int32], length: NDArray[np.int64]) -> Totals:
    if not len(function):
        return totals
    size = max(int(function.max()) + 1, len(totals.count))
    grown = _grown(totals, size)
    longest = grown.longest_ns.copy()
    np.maximum.at(longest, function, length)
    return Totals(
        grown.count + np.bincount(function, minlength=size),
        grown.total_ns + np.bincount(function, weights=length.astype(np.float64), minlength=size),
        longest,
    )
