"""Upper bounds of output lengths that hold without assuming a distribution."""

from __future__ import annotations

import math
from array import array

import numpy as np

#: Answers that are kept per role: enough for ε = 5 % on 64 slots (1,279), about 8 KB.
KEPT = 2048


def rank(n: int, alpha: float) -> int | None:
    """Return the rank k (from 1) of the order statistic that a new value exceeds with probability at most alpha.

    Of n + 1 exchangeable values each is equally likely to be the last one, so the k-th of n is exceeded with
    probability 1 − k/(n+1). None if even the largest does not suffice (n < 1/alpha − 1).
    """
    k = math.ceil((n + 1) * (1 - alpha) - 1e-9)
    return k if 0 < k <= n else None


class Lengths:
    """The latest output lengths of one role, and bounds from them."""

    __slots__ = ("_bounds", "at", "seen", "total", "values")

    def __init__(self, values: array[int] | None = None, seen: int = 0) -> None:
        self.values = values if values is not None else array("I")
        self.seen = max(seen, len(self.values))
        self.at = self.seen % KEPT
        self.total = float(sum(self.values))
        self._bounds: dict[float, int | None] = {}

    def add(self, tokens: int) -> None:
        """Add one length; beyond KEPT the oldest goes."""
        if len(self.values) < KEPT:
            self.values.append(tokens)
        else:
            self.total -= self.values[self.at]
            self.values[self.at] = tokens
        self.total += tokens
        self.seen += 1
        self.at = self.seen % KEPT
        self._bounds.clear()

    @property
    def mean(self) -> float:
        """Mean length; 0 without history."""
        return self.total / len(self.values) if self.values else 0.0

    def bound(self, alpha: float) -> int | None:
        """Return the bound that a new length exceeds with probability at most alpha; None if history is too thin."""
        if alpha not in self._bounds:
            k = rank(len(self.values), alpha)
            array_N = np.asarray(self.values)
            self._bounds[alpha] = None if k is None else int(np.partition(array_N, k - 1)[k - 1])
        return self._bounds[alpha]
