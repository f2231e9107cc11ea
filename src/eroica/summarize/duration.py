"""Critical execution duration: the part of an execution in which its resource was really used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def critical_duration(utilization_n: NDArray[np.float64], share: float = 0.8) -> tuple[int, int] | None:
    """The interval that holds a share of all use with the shortest possible longest gap.

    Args:
        utilization_n: Samples over one execution, finite and not negative. float64 [n].
        share: Part of the sum that the interval must hold, above 0.5 and up to 1.

    Returns:
        First sample and the one after the last, without zeros at either end; None where nothing was used (or nothing
        was sampled), because then no interval is better than another.

    Raises:
        ValueError: A sample is negative or no number, or the share is out of range.

    Source:
        EROICA, section 4.2, Algorithm 1. The paper searches the longest run of zeros allowed, g, by bisection, and says
        nothing of S = 0 and executions without a sample. For share > 0.5 at most one of the pieces between longer gaps
        can hold it, so a linear pass decides each g: O(n log n). Only lengths of gaps that occur need trying.
    """
    if not 0.5 < share <= 1.0:
        raise ValueError(f"share must be above 0.5 and at most 1, not {share}")
    if not np.all(np.isfinite(utilization_n)) or np.any(utilization_n < 0):
        raise ValueError("utilization must be finite and not negative")
    used = np.flatnonzero(utilization_n > 0)
    if not len(used):
        return None
    return _shortest_gap(utilization_n, used, share)


def _shortest_gap(utilization_n: NDArray[np.float64], used: NDArray[np.intp], share: float) -> tuple[int, int]:
    before = np.concatenate(([0.0], np.cumsum(utilization_n)))
    needed = share * before[-1] * (1.0 - 1e-12)
    gap = np.diff(used) - 1
    lengths = np.unique(np.concatenate(([0], gap)))
    low, high = 0, len(lengths) - 1
    best = (int(used[0]), int(used[-1]) + 1)
    while low <= high:
        middle = (low + high) // 2
        found = _heaviest_piece(before, used, gap > lengths[middle])
        if before[found[1]] - before[found[0]] >= needed:
            best, high = found, middle - 1
        else:
            low = middle + 1
    return best


def _heaviest_piece(before: NDArray[np.float64], used: NDArray[np.intp], cut: NDArray[np.bool_]) -> tuple[int, int]:
    """Find the piece between cut gaps with the largest sum."""
    first = np.concatenate((used[:1], used[1:][cut]))
    last = np.concatenate((used[:-1][cut], used[-1:])) + 1
    heaviest = int(np.argmax(before[last] - before[first]))
    return int(first[heaviest]), int(last[heaviest])
