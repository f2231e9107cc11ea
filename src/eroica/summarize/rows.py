"""Add up the slices of a window, and make those rows of its pattern that fit into its budget of bytes.

A trace may hold very many call stacks and names; the pattern has room for some hundred. Only candidates for a place get
series and records. Rows have `pattern_bytes`; collectives have a quarter of it on top, and
the timeline takes what these leave.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import ASIDE, CollectiveRecord, FunctionPattern
from eroica.model.series import encode_series
from eroica.summarize.sweep import Durations, Functions, Layer, Slice, Times
from eroica.summarize.utilization import Use

_MOST_ROWS = 3000
_MOST_FIRST = 500
_EXPLAINING_SHARE = 0.01
_LEAST_SERIES = 0.001
_SERIES_SHARE = 3
_LEAST_SERIES_BETA = 0.001
_EXPLAINING_BETA = 0.01


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


def build_rows(
    functions: Functions,
    tally: Tally,
    uses: Sequence[Use],
    errors: NDArray[np.float64],
    device_ns: NDArray[np.float64],
) -> tuple[tuple[FunctionPattern, ...], list[bytes], float]:
    """Candidates in order of falling beta, then total.

    Args:
        functions: F of them.
        tally: What was added up.
        uses: Utilization, F of them.
        errors: Standard errors of beta. float64 [F].
        device_ns: What a device does for each function, F of them. float64 [F].

    Returns:
        Rows, the encoded series of each, and the critical seconds of all functions without one.
    """
    count = len(functions)
    critical, totals = tally.critical_ns(count), tally.totals(count)
    window_ns = int(tally.edges_ns[-1] - tally.edges_ns[0])
    order = _candidates(functions, critical, totals, window_ns)
    place = np.full(count, -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    per_iteration = tally.per_iteration_ns(place, len(order))
    rows = tuple(
        FunctionPattern(
            key=functions.keys[number],
            beta=_short(critical[number] / window_ns),
            mu=_short(uses[number].mean),
            sigma=_short(uses[number].deviation),
            resource=uses[number].resource,
            resource_samples=uses[number].samples,
            critical_s=int(critical[number]) / 1e9,
            total_s=_short(totals.total_ns[number] / 1e9),
            count=int(totals.count[number]),
            max_s=_short(totals.longest_ns[number] / 1e9),
            active_iterations=int(np.count_nonzero(per_iteration[at])),
            beta_error=_short(errors[number]),
            device_s=_short(device_ns[number] / 1e9),
        )
        for at, number in enumerate(order.tolist())
    )
    series = [
        encode_series((part / 1000.0).astype(np.float32)) if _deserves(row) else b""
        for row, part in zip(rows, per_iteration, strict=True)
    ]
    left_out = int(critical[place < 0].sum())
    return rows, series, left_out / 1e9


def _deserves(row: FunctionPattern) -> bool:
    """Return whether a row may get its series (`budget.attach_series` chooses among these)."""
    return row.beta >= _LEAST_SERIES or (row.key.kind == "gc" and row.critical_s > 0)


def _candidates(functions: Functions, critical: NDArray[np.int64], totals: Totals, window_ns: int) -> NDArray[np.int64]:
    """Functions that may find a place among the rows, in order of falling critical, then total time."""
    seen = np.flatnonzero((critical > 0) | (totals.total_ns > 0))
    order = seen[np.lexsort((-totals.total_ns[seen], -critical[seen]))]
    if len(order) <= _MOST_ROWS:
        return order
    first = np.array([key.kind in ("gc", "collective") for key in functions.keys], dtype=np.bool_)
    explains = (critical == 0) & (totals.total_ns >= _EXPLAINING_SHARE * window_ns)
    kept = np.zeros(len(functions), dtype=np.bool_)
    kept[order[:_MOST_ROWS]] = True
    kept[order[first[order]][:_MOST_FIRST]] = True
    kept[order[explains[order]][:_MOST_FIRST]] = True
    return order[kept[order]]


def _short(value: float) -> float:
    """Six significant digits: what is not measured need not travel."""
    return float(f"{float(value):.6g}")


def wire_size(value: object) -> int:
    """Bytes of a value on the wire (MessagePack, zlib)."""
    return len(zlib.compress(msgspec.msgpack.encode(value), 6))


def attach_series(rows: Sequence[FunctionPattern], series: Sequence[bytes], budget: int) -> tuple[FunctionPattern, ...]:
    """Rows with their series per iteration: collector runs first, then by critical time, within a third of the budget.

    Args:
        rows: In order of falling beta.
        series: Encoded, one a row.
        budget: Bytes of all rows.
    """
    left = budget // _SERIES_SHARE
    order = sorted(range(len(rows)), key=lambda number: rows[number].key.kind != "gc")
    attached = list(rows)
    for number in order:
        row = rows[number]
        small = row.beta < _LEAST_SERIES_BETA and row.key.kind != "gc"
        if not row.critical_s or small or len(series[number]) > left:
            continue
        left -= len(series[number])
        attached[number] = msgspec.structs.replace(row, per_iteration_us=series[number])
    return tuple(attached)


def fit_rows(
    rows: Sequence[FunctionPattern], budget: int, window_s: float
) -> tuple[tuple[FunctionPattern, ...], float]:
    """Keep as many rows as the budget holds, and sum up the critical seconds of the others.

    Rows of other threads that fill over 1 % of the window explain waits, so they do not give way to the tail of the
    critical path: they rank like critical rows of 1 %. Collectives and collector runs always come first.

    Args:
        rows: In order of falling beta, then total.
        budget: Bytes on the wire.
        window_s: Length of the window.
    """
    order = sorted(range(len(rows)), key=lambda number: -_rank(rows[number], window_s))
    count = _largest(len(rows), lambda some: wire_size([rows[number] for number in sorted(order[:some])]) <= budget)
    kept = sorted(order[:count])
    dropped = sum(rows[number].critical_s for number in order[count:])
    return tuple(rows[number] for number in kept), dropped


def _rank(row: FunctionPattern, window_s: float) -> float:
    if row.key.kind in ("gc", "collective"):
        return 1.0
    if row.key.thread in ASIDE:
        return _EXPLAINING_BETA if row.total_s >= _EXPLAINING_SHARE * window_s else 0.0
    return row.beta


def fit_collectives(
    limit: int, budget: int, build: Callable[[int], tuple[CollectiveRecord, ...]]
) -> tuple[CollectiveRecord, ...]:
    """Records of as many executions each as the budget holds, at most `limit`.

    Args:
        limit: Executions per record.
        budget: Bytes on the wire.
        build: Records with at most so many executions each.
    """
    whole = build(limit)
    if wire_size(whole) <= budget:
        return whole
    return build(_largest(limit, lambda some: wire_size(build(some)) <= budget))


def _largest(high: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `high` that fits, 0 if none does; what is larger never fits better."""
    if fits(high):
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
