"""Iterations that take turns: several optimizer steps for one rollout, a longer step every so many.

Each step of an optimizer counts as an iteration, so in such a job short and long ones follow each other in a fixed
order. They scatter widely, and yet it is always the same few together that take as long as ever; so whoever looks for
slowdowns should look at whole cycles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import ceil, fsum
from statistics import median

#: Longest cycle that is looked for.
LONGEST = 16
#: Iterations that are looked at: the longest cycle six times.
LOOKED_AT = 6 * LONGEST
#: The longest place of a cycle takes so many times the shortest one's time...
_APART = 1.5
#: ...and of the iterations in each place, so many lie within this share of the difference from their median.
_MOSTLY = 0.8
_ALIKE = 0.25


def find_cycle(durations: Sequence[float]) -> int:
    """Iterations of one cycle, 1 where they do not take turns: the shortest that fits.

    Args:
        durations: Seconds, in order.
    """
    for period in range(2, LONGEST + 1):
        places = [durations[place::period] for place in range(period)]
        if min(map(len, places)) < 2:
            break
        usual = [median(place) for place in places]
        within = _ALIKE * (max(usual) - min(usual))
        if max(usual) > _APART * min(usual) and all(map(_are_alike, places, usual, [within] * period)):
            return period
    return 1


def _are_alike(durations: Sequence[float], usual: float, within: float) -> bool:
    off = sorted(abs(one - usual) for one in durations)
    return off[ceil(_MOSTLY * len(off)) - 1] <= within


class Cycles:
    """Means over cycles instead of single iterations, where there are cycles; learned once, at the beginning.

    Not later: what makes every fourth iteration slow may be the very slowdown that is looked for.

    Attributes:
        period: Iterations of a cycle, 1 where there are none, or none yet.
    """

    def __init__(self) -> None:
        self.period = 1
        self._first: list[float] | None = []
        self._last: deque[float] = deque(maxlen=LONGEST)

    def add(self, duration_s: float) -> float | list[float]:
        """Take in one iteration.

        Returns:
            What counts in its place: the mean over the cycle that it ends. A list once, when a cycle was found: what
            counts in place of all so far, one value each from the first whole cycle on.
        """
        if self._first is None:
            self._last.append(duration_s)
            return self._mean() if self.period > 1 else duration_s
        self._first.append(duration_s)
        if len(self._first) < LOOKED_AT:
            return duration_s
        first, self._first = self._first, None
        self.period = find_cycle(first)
        if self.period == 1:
            return duration_s
        again = []
        for one in first:
            self._last.append(one)
            if len(self._last) >= self.period:
                again.append(self._mean())
        return again

    def _mean(self) -> float:
        return fsum(islice(self._last, len(self._last) - self.period, None)) / self.period
