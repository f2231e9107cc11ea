"""Compute with intervals of time: kernels in NumPy, exact in integer nanoseconds.

Suffixes: N intervals given, K segments returned, L layers. Intervals are half-open [start, end). Numbers for functions
and threads are here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey
from eroica.trace.table import EventTable

Times = NDArray[np.int64]
Numbers = NDArray[np.int32]
_LARGER = 4
_SMALL = 200_000


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
        if not len(self.start) or (self.start[0] >= start and self.end[-1] <= end):
            return self
        low, high = np.maximum(self.start, start), np.minimum(self.end, end)
        keep = low < high
        return Layer(low[keep], high[keep], self.function[keep], self.execution[keep])

    def where(self, keep: NDArray[np.bool_]) -> Layer:
        """Only the chosen segments."""
        if keep.all():
            return self
        return Layer(self.start[keep], self.end[keep], self.function[keep], self.execution[keep])


class Durations(NamedTuple):
    """Executions for counting: which function, how long (an operator: its self time). P of them.

    Attributes:
        function: int32 [P].
        length_ns: int64 [P].
        row: Row in the table of events, -1 for what is in none. int32 [P].
    """

    function: Numbers
    length_ns: Times
    row: Numbers


def join_durations(parts: Sequence[Durations]) -> Durations:
    """All of them as one."""
    nothing = Durations(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32))
    return Durations(*(np.concatenate(columns) for columns in zip(nothing, *parts, strict=True)))


def without_rows(function: Numbers, length_ns: Times) -> Durations:
    """Executions that no event tells."""
    return Durations(function, length_ns, np.full(len(function), -1, dtype=np.int32))


def stretches(start: Times, end: Times, function: Numbers | int) -> Layer:
    """A layer of stretches that belong to no execution: the function of each, or one for all."""
    numbers = np.full(len(start), function, dtype=np.int32)
    return Layer(start, end, numbers, np.full(len(start), -1, dtype=np.int32))


def empty_layer() -> Layer:
    """A layer of nothing."""
    none = np.empty(0, dtype=np.int64)
    return stretches(none, none, -1)


def distinct(time_M: Times) -> Times:
    """Distinct moments in rising order, quickest for what is in order for long stretches (`np.unique` hashes)."""
    ordered = np.sort(time_M, kind="stable")
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


class Nesting(NamedTuple):
    """A nested set of intervals: which interval lies in which.

    Attributes:
        depth_N: 1 for the outermost. int32 [N].
        parent_N: Number of the interval around each one, -1 for the outermost. int32 [N].
        end_N: Where each one ends after cutting. int64 [N].
        time: Starts and ends of all in one order, ends first where equal. int64 [2 N].
        top: The innermost interval that is open from each of these moments on, -1 for none. int32 [2 N].
    """

    depth_N: Numbers
    parent_N: Numbers
    end_N: Times
    time: Times
    top: Numbers

    def leaves(self) -> tuple[Times, Times, Numbers]:
        """Start, end and number of the stretches in which each interval is the innermost one; disjoint, in order."""
        keep = (self.top[:-1] >= 0) & (self.time[:-1] < self.time[1:])
        return self.time[:-1][keep], self.time[1:][keep], self.top[:-1][keep]


def nest(start_N: Times, end_N: Times) -> Nesting:
    """Find the interval around each interval.

    Args:
        start_N: In rising order, where equal the longer first.
        end_N: After start. Intervals that cross instead of nesting (rounded times do, by a nanosecond) are cut at the
            end of the outer one.
    """
    found = _nest(start_N, end_N) or _nest(start_N, _cut_crossings(start_N, end_N))
    assert found is not None  # nothing crosses any more
    return found


def _nest(start_N: Times, end_N: Times) -> Nesting | None:
    """Find the innermost interval around each interval; None if some cross."""
    count = len(start_N)
    moments = np.concatenate((end_N[::-1], start_N))
    order = np.argsort(moments, kind="stable")  # ends first where equal, of these the innermost one's first
    signed = order.astype(np.int32) - np.int32(count)
    is_start = signed >= 0
    number = signed ^ (signed >> 31)
    level = np.cumsum(is_start.view(np.int8) * np.int8(2) - np.int8(1), dtype=np.int32)
    top = _latest_of_level(is_start, number, level)
    if np.any((top[:-1] != number[1:]) & ~is_start[1:]):
        return None
    parent_N = np.empty(count, dtype=np.int32)
    parent_N[number[~is_start]] = top[~is_start]
    return Nesting(level[is_start], parent_N, end_N, moments[order], top)


def _latest_of_level(is_start: NDArray[np.bool_], number: Numbers, level: Numbers) -> Numbers:
    """Find the latest interval begun at the stack's depth from each moment on; -1 where the stack is empty."""
    by_level = np.argsort(level.astype(np.int16) if level.max(initial=0) < 2**15 else level, kind="stable")
    place = np.arange(len(by_level), dtype=np.int32)
    place *= is_start[by_level]
    top = np.empty(len(by_level), dtype=np.int32)
    top[by_level] = number[by_level[np.maximum.accumulate(place)]]
    top[level == 0] = -1
    return top


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


def split_at(layer: Layer, cuts: Times) -> Layer:
    """Cut the segments of a layer at some moments (rising)."""
    first = np.searchsorted(cuts, layer.start, side="right")
    last = np.searchsorted(cuts, layer.end, side="left")
    pieces = np.maximum(last - first, 0) + 1
    if int(pieces.sum()) == len(pieces):
        return layer
    which = np.repeat(np.arange(len(pieces)), pieces)
    place = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    cut = first[which] + place
    start = np.where(place == 0, layer.start[which], cuts[np.maximum(cut - 1, 0)])
    end = np.where(place == pieces[which] - 1, layer.end[which], cuts[np.minimum(cut, len(cuts) - 1)])
    return Layer(start, end, layer.function[which], layer.execution[which])


def first_come(start_N: Times, end_N: Times) -> tuple[Times, Times, NDArray[np.int64]]:
    """Give each moment to the first started of the intervals that run at it.

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
    """Return which moments lie in disjoint, ordered intervals. bool [M]."""
    return find_interval(time_M, start_N, end_N) >= 0


def find_interval(time_M: Times, start_N: Times, end_N: Times) -> NDArray[np.int64]:
    """Number of the interval around each moment, -1 for none; intervals are disjoint and in order. int64 [M]."""
    if not len(start_N):
        return np.full(len(time_M), -1, dtype=np.int64)
    number = np.searchsorted(start_N, time_M, side="right") - 1
    return np.where((number >= 0) & (time_M < end_N[number]), number, -1)


def paint(layers: Sequence[Layer], cuts: Times) -> Layer:
    """Give each moment to one layer: earlier layers come before later ones.

    Args:
        layers: L layers, each disjoint and in order.
        cuts: Moments at which segments are cut in any case, rising; the first and last are the window. int64, two or
            more.

    Returns:
        The whole window in segments; function and execution are -1 where no layer has anything.
    """
    start, end = int(cuts[0]), int(cuts[-1])
    kept = [inner for layer in layers if len((inner := layer.within(start, end)).start)]
    apart = [np.append(layer.end[:-1] != layer.start[1:], True) for layer in kept]  # most ends are the next one's start
    ends = [layer.end[ends] for layer, ends in zip(kept, apart, strict=True)]
    edges = distinct(np.concatenate([cuts, *(layer.start for layer in kept), *ends]))
    function = np.full(len(edges) - 1, -1, dtype=np.int32)
    execution = np.full(len(edges) - 1, -1, dtype=np.int32)
    for layer, is_apart, end_E in reversed(list(zip(kept, apart, ends, strict=True))):
        first = np.searchsorted(edges, layer.start)
        after = np.append(first[1:], 0)
        after[is_apart] = np.searchsorted(edges, end_E)
        pieces = after - first
        place = np.repeat(first - (np.cumsum(pieces) - pieces), pieces)
        place += np.arange(len(place))
        function[place] = np.repeat(layer.function, pieces)
        execution[place] = np.repeat(layer.execution, pieces)
    return Layer(edges[:-1], edges[1:], function, execution)


def distinct_codes(code_M: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct codes in rising order, and which of them each one is.

    Args:
        code_M: Not negative. int64 [M].

    Returns:
        int64 [kinds] and int64 [M].
    """
    size = int(code_M.max(initial=-1)) + 1
    if size > _LARGER * len(code_M) + _SMALL:
        kinds, inverse = np.unique(code_M, return_inverse=True)
        return kinds, inverse
    used = np.zeros(size, dtype=np.bool_)
    used[code_M] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[code_M]


def rows_by_thread(events: EventTable, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield threads in rising order, each with its rows in the order given; one sort for all threads."""
    rows = rows[np.argsort(events.thread[rows], kind="stable")]
    thread = events.thread[rows]
    for mine in np.split(rows, np.flatnonzero(thread[1:] != thread[:-1]) + 1):
        if len(mine):
            yield int(events.thread[mine[0]]), mine


class Functions:
    """Numbers for function keys, in order of first sight."""

    def __init__(self) -> None:
        self.keys: list[FunctionKey] = []
        self._numbers: dict[FunctionKey, int] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def number(self, key: FunctionKey) -> int:
        """The key's number, a new one if it is new."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return found

    def numbers(self, code_M: NDArray[np.int64], key_of: Callable[[int], FunctionKey]) -> Numbers:
        """The numbers of many keys; `key_of` is asked once for each distinct code. int32 [M]."""
        codes, inverse = distinct_codes(code_M)
        return np.array([self.number(key_of(code)) for code in codes.tolist()], dtype=np.int32)[inverse]
