"""Fit a pattern into its budget of bytes on the wire: choose the rows, series and executions that travel.

Rows have `pattern_bytes`, less what waits for the device take of it, an eighth at most; executions of collectives
have a quarter of it on top. So a pattern stays below 30 KB by default; its timeline takes what these leave of that.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import msgspec

from eroica.model.pattern import ASIDE, CollectiveRecord, FunctionPattern, Synchronization

_SERIES_SHARE = 3
_LEAST_SERIES_BETA = 0.001
_EXPLAINING_BETA = 0.01
_EXPLAINING_SHARE = 0.01
#: Innermost frames that say where a wait is; outer ones give way to further waits.
_LEAST_FRAMES = 6


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


def fit_syncs(syncs: Sequence[Synchronization], budget: int) -> tuple[Synchronization, ...]:
    """Keep as many waits for the device as the budget holds, then as many innermost frames of each as still fit.

    Args:
        syncs: The costliest first.
        budget: Bytes on the wire.
    """
    least = _LEAST_FRAMES if wire_size(_innermost(syncs[:1], _LEAST_FRAMES)) <= budget else 0
    count = _largest(len(syncs), lambda some: wire_size(_innermost(syncs[:some], least)) <= budget)
    deepest = max((len(one.stack) for one in syncs[:count]), default=0)
    frames = _largest(deepest, lambda some: wire_size(_innermost(syncs[:count], some)) <= budget)
    return _innermost(syncs[:count], frames)


def _innermost(syncs: Sequence[Synchronization], frames: int) -> tuple[Synchronization, ...]:
    return tuple(msgspec.structs.replace(one, stack=one.stack[max(len(one.stack) - frames, 0) :]) for one in syncs)


def _largest(high: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `high` that fits, 0 if none does; what is larger never fits better."""
    if fits(high):
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
