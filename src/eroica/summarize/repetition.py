"""Iterations of a trace without any mark: a sequence of names that repeats, found conservatively."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LEAST_REPEATS = 3
_LEAST_PERIOD = 4
_EQUAL = 0.98
_COVERED = 0.7
_MOST_CANDIDATES = 8
_MOST_LOOKED_AT = 300_000


def find_repetition(name_N: NDArray[np.int32]) -> NDArray[np.int64] | None:
    """Find the beginning of each repetition of a sequence.

    A name that occurs once a repetition has the same distance to itself each time; these distances are the candidates.
    The longest one counts at which nearly all of the sequence repeats: layers repeat, too, but what stands around them
    does not repeat with them.

    Args:
        name_N: Numbers of names in order of time. int32 [N].

    Returns:
        Positions of the first item of each repetition, rising; None if nothing repeats at least three times over most
        of the sequence. Between two of them lies a whole repetition. int64, three or more.
    """
    for period in _candidates(name_N[:_MOST_LOOKED_AT]):
        same = name_N[:-period] == name_N[period:]
        begin, end = _steady(same, period)
        repeats = (end - begin) // period
        if repeats >= _LEAST_REPEATS and repeats * period >= _COVERED * len(name_N):
            begins: NDArray[np.int64] = begin + period * np.arange(repeats + 1, dtype=np.int64)
            return begins[begins < len(name_N)]
    return None


def _candidates(name_N: NDArray[np.int32]) -> list[int]:
    """Distances at which some name returns every time, the longest first."""
    order = np.argsort(name_N, kind="stable")
    ordered = name_N[order]
    same = ordered[1:] == ordered[:-1]
    distance = np.diff(order)
    group = np.cumsum(np.append(True, ~same))[1:][same] if len(order) else np.empty(0, np.int64)
    distance = distance[same]
    if not len(distance):
        return []
    begins = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    low, high = np.minimum.reduceat(distance, begins), np.maximum.reduceat(distance, begins)
    counts = np.diff(np.append(begins, len(distance)))
    steady = (low == high) & (counts >= _LEAST_REPEATS - 1) & (low >= _LEAST_PERIOD)
    periods, names = np.unique(low[steady], return_counts=True)
    often = periods[np.argsort(-names, kind="stable")][:_MOST_CANDIDATES]
    return sorted((int(period) for period in often), reverse=True)


def _steady(same: NDArray[np.bool_], period: int) -> tuple[int, int]:
    """The stretch of the sequence, in items, in which nearly all of each period is the same one period later."""
    if len(same) < period:
        return 0, 0
    count = np.cumsum(np.append(False, same), dtype=np.int32)
    good = np.flatnonzero(count[period:] - count[:-period] >= _EQUAL * period).astype(np.int32)
    if not len(good):
        return 0, 0
    breaks = np.flatnonzero(np.diff(good) > 1)
    begins = good[np.concatenate(([0], breaks + 1))]
    ends = good[np.concatenate((breaks, [len(good) - 1]))]
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest]) + 2 * period
