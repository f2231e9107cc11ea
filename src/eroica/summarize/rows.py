"""Add up the slices of a window, and make those rows of its pattern that fit into its budget of bytes.

A trace may hold very many call stacks and names; the pattern has room for some hundred. Only candidates for a place get
series and records. Rows have `pattern_bytes`; collectives have a quarter of it on top.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import ASIDE, CollectiveRecord, FunctionKey, FunctionPattern
from eroica.model.series import encode_series
from eroica.model.worker import ProcessGroup
from eroica.summarize.collectives import POINT_TO_POINT, Execution
from eroica.summarize.sweep import Durations, Functions, Layer, Times
from eroica.summarize.utilization import Use

_MOST_ROWS = 3000
_EXPLAINING_SHARE = 0.01
_LEAST_SERIES = 0.001
_SERIES_SHARE = 3
MOST_RECORDS = 1000
#: Executions kept per process group and kind of collective.
_EXECUTIONS = 512
#: Recorded traces are paired by ends, and ranks leave microseconds apart. Online, ends only say what came before what,
#: and a pattern has to stay small: coarser steps save a quarter of their bytes.
RECORDED_GRAIN_NS = 125
ONLINE_GRAIN_NS = 8_000


class Tally:
    """Add up what a window shows.

    Args:
        edges_ns: Boundaries of the iterations, wall clock. int64 [I + 1].
        segments: The critical path, cut at the boundaries; function -1 is idle.
        durations: All executions.
        collectives: Functions whose executions are counted apart.
        executions: How many collectives there were.

    Attributes:
        idle_ns: Time of no function.
        execution_ns: Critical time of each collective. int64 [executions].
    """

    def __init__(
        self, edges_ns: Times, segments: Layer, durations: Durations, collectives: Layer, executions: int
    ) -> None:
        self.edges_ns = edges_ns
        owned = segments.where(segments.function >= 0)
        self._iterations = len(edges_ns) - 1
        self._function = owned.function
        self._iteration = np.repeat(np.arange(self._iterations), np.diff(np.searchsorted(owned.start, edges_ns)))
        self._length = (owned.end - owned.start).astype(np.float64)
        self.idle_ns = max(int(edges_ns[-1] - edges_ns[0]) - round(float(self._length.sum())), 0)
        mine = np.isin(owned.function, np.unique(collectives.function))
        self.execution_ns = _summed(owned.execution[mine], self._length[mine], executions)
        self._durations = durations

    def critical_ns(self, functions: int) -> NDArray[np.int64]:
        """Critical nanoseconds of functions 0..functions-1. int64 [F]."""
        return _summed(self._function, self._length, functions)

    def per_iteration_ns(self, groups: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Critical nanoseconds in each iteration, of groups of functions.

        Args:
            groups: Group of each function, -1 for none. int64 [F].
            count: Groups.

        Returns:
            int64 [count, I].
        """
        group = groups[self._function]
        keep = group >= 0
        place = group[keep] * self._iterations + self._iteration[keep]
        return _summed(place, self._length[keep], count * self._iterations).reshape(count, self._iterations)

    def totals(self, functions: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Executions, their nanoseconds, and the longest one, of functions 0..functions-1. int64 [F] each."""
        function, length = self._durations.function, self._durations.length_ns
        longest = np.zeros(functions, dtype=np.int64)
        np.maximum.at(longest, function, length)
        total = _summed(function, length.astype(np.float64), functions)
        return np.bincount(function, minlength=functions), total, longest


def _summed(place: NDArray[Any], length: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Sums of lengths by place. int64 [count]."""
    return np.rint(np.bincount(place, weights=length, minlength=count)).astype(np.int64)


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
    critical, (executions, total, longest) = tally.critical_ns(count), tally.totals(count)
    window_ns = int(tally.edges_ns[-1] - tally.edges_ns[0])
    order = _candidates(functions, critical, total, window_ns)
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
            total_s=_short(total[number] / 1e9),
            count=int(executions[number]),
            max_s=_short(longest[number] / 1e9),
            active_iterations=int(np.count_nonzero(per_iteration[at])),
            beta_error=_short(errors[number]),
            device_s=_short(device_ns[number] / 1e9),
        )
        for at, number in enumerate(order.tolist())
    )
    series = [
        encode_series((part / 1000.0).astype(np.float32))
        if row.beta >= _LEAST_SERIES or (row.key.kind == "gc" and row.critical_s > 0)
        else b""
        for row, part in zip(rows, per_iteration, strict=True)
    ]
    left_out = int(critical[place < 0].sum())
    return rows, series, left_out / 1e9


def _candidates(
    functions: Functions, critical: NDArray[np.int64], total: NDArray[np.int64], window_ns: int
) -> NDArray[np.int64]:
    """Functions that may find a place among the rows, in order of falling critical, then total time."""
    seen = np.flatnonzero((critical > 0) | (total > 0))
    order = seen[np.lexsort((-total[seen], -critical[seen]))]
    if len(order) <= _MOST_ROWS:
        return order
    ranks = [
        _rank(functions.keys[number], critical[number] / window_ns, total[number] / window_ns)
        for number in order.tolist()
    ]
    return order[np.sort(np.argsort(-np.array(ranks), kind="stable")[:_MOST_ROWS])]


def _rank(key: FunctionKey, beta: float, total: float) -> float:
    """The place of a function where not all have one; `beta` and `total` are shares of the window.

    Rows of other threads that fill over 1 % of the window explain waits, so they do not give way to the tail of the
    critical path: they rank like critical rows of 1 %. Collectives and collector runs always come first.
    """
    if key.kind in ("gc", "collective"):
        return 1.0
    if key.thread in ASIDE:
        return _EXPLAINING_SHARE if total >= _EXPLAINING_SHARE else 0.0
    return beta


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
        if series[number] and len(series[number]) <= left:
            left -= len(series[number])
            attached[number] = msgspec.structs.replace(rows[number], per_iteration_us=series[number])
    return tuple(attached)


def fit_rows(
    rows: Sequence[FunctionPattern], budget: int, window_s: float
) -> tuple[tuple[FunctionPattern, ...], float]:
    """Keep as many rows as the budget holds, and sum up the critical seconds of the others.

    Args:
        rows: In order of falling beta, then total.
        budget: Bytes on the wire.
        window_s: Length of the window.
    """
    ranks = [_rank(row.key, row.beta, row.total_s / window_s) for row in rows]
    order = sorted(range(len(rows)), key=lambda number: -ranks[number])
    count = _largest(len(rows), lambda some: wire_size([rows[number] for number in sorted(order[:some])]) <= budget)
    kept = sorted(order[:count])
    dropped = sum(rows[number].critical_s for number in order[count:])
    return tuple(rows[number] for number in kept), dropped


def _largest(high: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `high` that fits, 0 if none does; what is larger never fits better."""
    return high if fits(high) else bisect_left(range(1, high), True, key=lambda number: not fits(number))


# --- collectives as they travel: durations and sequence numbers per process group and kind ---


def fit_collectives(
    executions: Sequence[Execution],
    critical_ns: NDArray[np.int64],
    edges_ns: NDArray[np.int64],
    groups: Sequence[ProcessGroup],
    global_rank: int,
    budget: int,
    grain_ns: int = RECORDED_GRAIN_NS,
    limit: int = _EXECUTIONS,
) -> tuple[CollectiveRecord, ...]:
    """One record per group and kind, each with as many of its last executions as the budget holds.

    Of too many records those with most executions are kept. Executions without a number, where others of their kind
    have one, count as dropped. The last ones are kept because every worker keeps the same ones then: the window ends at
    the same iteration everywhere, and the Flight Recorder forgets the oldest first.

    Args:
        executions: C of them.
        critical_ns: Critical part of each. int64 [C].
        edges_ns: Boundaries of the captured iterations, wall clock. int64 [iterations + 1].
        groups: Process groups, to tell the other side of a send in a group of two.
        global_rank: This worker.
        budget: Bytes on the wire.
        grain_ns: Ends are told in steps of this.
        limit: Most executions kept per record.
    """
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, one in enumerate(executions):
        rows[one.group, one.kind].append(number)
    others = {group.name: [rank for rank in group.ranks if rank != global_rank] for group in groups}
    most = sorted(sorted(rows, key=lambda key: -len(rows[key]))[:MOST_RECORDS])

    def build(some: int) -> tuple[CollectiveRecord, ...]:
        return tuple(record(key, some) for key in most)

    def record(key: tuple[str, str], some: int) -> CollectiveRecord:
        numbered = [number for number in rows[key] if executions[number].paired_by == "sequence"]
        kept = (numbered or rows[key])[-some:] if some > 0 else []
        columns = _columns([executions[number] for number in kept], critical_ns[kept], edges_ns, grain_ns)
        pairing = [executions[number].paired_by for number in kept]
        if key[1] in POINT_TO_POINT:  # they pair as far as their other side is known
            only = others.get(key[0], [])
            other = only[0] if len(only) == 1 else -1
            peers = [executions[number].peer if executions[number].peer >= 0 else other for number in kept]
            pairing = [one for one, peer in zip(pairing, peers, strict=True) if peer >= 0] or pairing
            if max(peers, default=-1) >= 0:
                columns["peers"] = np.array(peers, dtype=np.int32)
        return CollectiveRecord(
            group=key[0],
            kind=key[1],
            paired_by=pairing[0] if len(set(pairing)) == 1 else "none",
            executions=len(kept),
            dropped=len(rows[key]) - len(kept),
            **{name: encode_series(values) for name, values in columns.items()},
        )

    whole = build(limit)
    if wire_size(whole) <= budget:
        return whole
    return build(_largest(limit, lambda some: wire_size(build(some)) <= budget))


def _columns(
    chosen: list[Execution], critical_ns: NDArray[np.int64], edges_ns: NDArray[np.int64], grain_ns: int
) -> dict[str, NDArray[Any]]:
    """Columns named as in `CollectiveRecord`; ends in whole steps, for what lies between would only cost bytes."""
    end = np.array([one.end_ns for one in chosen], dtype=np.int64)
    start = np.array([one.start_ns for one in chosen], dtype=np.int64)
    iteration = np.clip(np.searchsorted(edges_ns, end, side="left") - 1, 0, len(edges_ns) - 2)
    return {
        "sequence": np.array([one.sequence for one in chosen], dtype=np.int64),
        "iteration": iteration.astype(np.int32),
        "duration_us": ((end - start) / 1000.0).astype(np.float32),
        "critical_us": (critical_ns / 1000.0).astype(np.float32),
        "elements": np.array([one.elements for one in chosen], dtype=np.int64),
        "end_us": np.rint((end - edges_ns[0]) / grain_ns) * (grain_ns / 1e3),
    }
