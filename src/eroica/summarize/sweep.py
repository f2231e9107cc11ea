"""Sweeps over intervals: kernels in NumPy, exact in integer nanoseconds.

Suffixes: N intervals given, K segments returned, L layers. Intervals are half-open [start, end). Kernels assume what
they say they assume; slow twins of all of them stand in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Numbers = NDArray[np.int32]


class Layer(NamedTuple):
    """Disjoint stretches of time in order, each belonging to a function (and to one execution, -1 if to none).

    Attributes:
        start: int64 [K].
        end: int64 [K], after `start`.
        function: int32 [K].
        execution: int32 [K].
    """

    start: Times
    end: Times
    function: Numbers
    execution: Numbers

    def within(self, start: int, end: int) -> Layer:
        """Only what lies in [start, end)."""
        low, high = np.maximum(self.start, start), np.minimum(self.end, end)
        keep = low < high
        return Layer(low[keep], high[keep], self.function[keep], self.execution[keep])

    def where(self, keep: NDArray[np.bool_]) -> Layer:
        """Only the chosen segments."""
        return Layer(self.start[keep], self.end[keep], self.function[keep], self.execution[keep])


def empty_layer() -> Layer:
    """A layer of nothing."""
    none = np.empty(0, dtype=np.int64)
    return Layer(none, none, none.astype(np.int32), none.astype(np.int32))


def distinct(time_M: Times) -> Times:
    """Distinct moments in rising order (`np.unique` hashes, which takes ten times as long)."""
    ordered = np.sort(time_M)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def leaf_segments(start_N: Times, end_N: Times) -> tuple[Times, Times, NDArray[np.int64]]:
    """Where each interval of a nested set is the innermost one: its self time.

    Args:
        start_N: In rising order, where equal the longer first.
        end_N: After start. Intervals that cross instead of nesting are cut at the end of the outer one.

    Returns:
        Start, end and interval number of each segment, disjoint and in order. int64 [K], K < 2 N.
    """
    if not len(start_N):
        return start_N, end_N, np.empty(0, dtype=np.int64)
    merged = _merge(start_N, end_N)
    if not merged.nested:
        end_N = _cut_crossings(start_N, end_N)
        merged = _merge(start_N, end_N)
    parent_N = _parents(merged.depth_N)
    top = np.empty(2 * len(start_N), dtype=np.int64)
    top[merged.start_position] = np.arange(len(start_N))
    top[merged.end_position] = parent_N
    time = np.empty(2 * len(start_N), dtype=np.int64)
    time[merged.start_position] = start_N
    time[merged.end_position] = end_N
    keep = (top[:-1] >= 0) & (time[:-1] < time[1:])
    return time[:-1][keep], time[1:][keep], top[:-1][keep]


class _Merged(NamedTuple):
    """Starts and ends in one order of time (ends first where equal); positions are by interval number."""

    start_position: NDArray[np.int64]
    end_position: NDArray[np.int64]
    depth_N: NDArray[np.int64]
    nested: bool


def _merge(start_N: Times, end_N: Times) -> _Merged:
    count = len(start_N)
    by_end = count - 1 - np.argsort(end_N[::-1], kind="stable")
    sorted_end = end_N[by_end]
    start_position = np.arange(count) + np.searchsorted(sorted_end, start_N, side="right")
    end_position = np.empty(count, dtype=np.int64)
    end_position[by_end] = np.arange(count) + np.searchsorted(start_N, sorted_end, side="left")
    step = np.full(2 * count, -1, dtype=np.int64)
    step[start_position] = 1
    depth = np.cumsum(step)
    depth_N = depth[start_position]
    nested = bool(np.array_equal(depth[end_position] + 1, depth_N))
    return _Merged(start_position, end_position, depth_N, nested)


def _parents(depth_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the interval around each one, -1 for the outermost: the latest start that is one level up."""
    count = len(depth_N)
    number = np.arange(count)
    keys = np.sort(depth_N * count + number)
    wanted = (depth_N - 1) * count + number
    above = keys[np.maximum(np.searchsorted(keys, wanted) - 1, 0)] - (depth_N - 1) * count
    return np.where(depth_N > 1, above, -1)


def _cut_crossings(start_N: Times, end_N: Times) -> Times:
    ends = end_N.tolist()
    open_ends: list[int] = []
    for number, start in enumerate(start_N.tolist()):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends:
            ends[number] = min(ends[number], open_ends[-1])
        open_ends.append(ends[number])
    return np.array(ends, dtype=np.int64)


def first_come(start_N: Times, end_N: Times) -> tuple[Times, Times, NDArray[np.int64]]:
    """Of intervals that run at the same time, the one that started first has the moment.

    The paper leaves open who is critical among equals; so each moment has one owner and sums stay below the window.

    Args:
        start_N: In rising order.
        end_N: After start.

    Returns:
        Start, end and interval number, disjoint and in order. int64 [K], K <= N.
    """
    if not len(start_N):
        return start_N, end_N, np.empty(0, dtype=np.int64)
    before = np.concatenate((start_N[:1], np.maximum.accumulate(end_N)[:-1]))
    begin = np.maximum(start_N, before)
    keep = np.flatnonzero(begin < end_N)
    return begin[keep], end_N[keep], keep


def unite(start_N: Times, end_N: Times) -> tuple[Times, Times]:
    """The moments covered by any interval, as disjoint intervals in order. int64 [K], K <= N."""
    order = np.argsort(start_N, kind="stable")
    start, end = start_N[order], end_N[order]
    keep = start < end
    start, end = start[keep], end[keep]
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    closes = np.append(np.flatnonzero(opens)[1:] - 1, len(start) - 1)
    return start[opens], reach[closes]


def inside(time_M: Times, start_N: Times, end_N: Times) -> NDArray[np.bool_]:
    """Which moments lie in disjoint, ordered intervals. bool [M]."""
    return find_interval(time_M, start_N, end_N) >= 0


def find_interval(time_M: Times, start_N: Times, end_N: Times) -> NDArray[np.int64]:
    """Number of the interval around each moment, -1 for none; intervals are disjoint and in order. int64 [M]."""
    if not len(start_N):
        return np.full(len(time_M), -1, dtype=np.int64)
    number = np.searchsorted(start_N, time_M, side="right") - 1
    return np.where((number >= 0) & (time_M < end_N[number]), number, -1)


def intersect(start_N: Times, end_N: Times, start_M: Times, end_M: Times) -> tuple[Times, Times]:
    """The moments in both of two sets of disjoint, ordered intervals. int64 [K]."""
    edges = distinct(np.concatenate((start_N, end_N, start_M, end_M)))
    low, high = edges[:-1], edges[1:]
    both = inside(low, start_N, end_N) & inside(low, start_M, end_M)
    return unite(low[both], high[both])


def paint(layers: Sequence[Layer], cuts: Times) -> Layer:
    """Who has each moment if earlier layers come before later ones.

    Args:
        layers: L layers, each disjoint and in order.
        cuts: Moments at which segments are cut in any case, rising; the first and last are the window. int64, two or
            more.

    Returns:
        The whole window in segments; function and execution are -1 where no layer has anything.
    """
    start, end = int(cuts[0]), int(cuts[-1])
    kept = [layer.within(start, end) for layer in layers]
    edges = distinct(np.concatenate([cuts, *(item for layer in kept for item in (layer.start, layer.end))]))
    low = edges[:-1]
    function = np.full(len(low), -1, dtype=np.int32)
    execution = np.full(len(low), -1, dtype=np.int32)
    left = np.arange(len(low))
    for layer in kept:
        found = find_interval(low[left], layer.start, layer.end)
        hit = found >= 0
        function[left[hit]] = layer.function[found[hit]]
        execution[left[hit]] = layer.execution[found[hit]]
        left = left[~hit]
    return Layer(low, edges[1:], function, execution)
