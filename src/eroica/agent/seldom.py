"""Long iterations that come back after many usual ones, and cost more than they used to: a pure state machine.

A checkpoint in every fiftieth iteration is in no mean, for the slowest few are left out of them. When it begins to take
as long as twenty iterations, the job loses a third of its time, and no mean shows that. So occasions are counted: what
lasts longer than the usual iteration, for one iteration or a few. Four alike that follow each other at equal distances
are a habit; it is new if nothing of that size was there for as long before. What a job has always done, evaluate every
hundred iterations, is no news, whatever it costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

#: An iteration so many times as long as the usual one is long; more of them in a row are a stretch (`bursts`).
_LONG = 1.5
_IN_A_ROW = 4
#: An occasion takes at least as much beyond the usual as so many iterations.
_LEAST_EXCESS = 1.0
#: So many occasions make a habit...
_HABIT = 4
#: ...if each takes at least this share of the last one, and none is longer by as much...
_ALIKE = 0.6
#: ...and no distance between two of them is further than this share, or one iteration, from the mean distance...
_REGULAR = 0.1
#: ...and nothing else since the first of them took this share of the shortest one: chance is irregular.
_ELSE = 0.4
#: So many distances before the first of them, none of their size was there.
_BEFORE = 3
#: Iterations from one to the next: what comes more often than the shortest is in the means.
_CLOSEST = 12
#: The share of all time since that it costs more than before...
_LEAST_LOST = 0.10
#: ...and it must come back within so many iterations.
_MEMORY = 5000
_MOST = 256


class _Occasion(NamedTuple):
    """Long iterations in a row: the first one's number, when it began, what they took beyond the usual."""

    began: int
    began_s: float
    excess_s: float


class Seldom:
    """Long iterations of one worker.

    Attributes:
        count: Occasions of the habit when it was last noticed.
        interval: Iterations from one to the next, mean.
        period_s: The same in seconds.
        before_s: Mean iteration before the first of them, all counted, seconds.
        mean_s: Mean iteration since, seconds.
    """

    def __init__(self) -> None:
        self.count = 0
        self.interval = self.period_s = self.before_s = self.mean_s = 0.0
        self._known: deque[_Occasion] = deque(maxlen=_MOST)
        self._row: list[float] = []
        self._seen = 0
        self._clock_s = 0.0

    def observe(self, duration_s: float, usual_s: float, margin: float = 1.0) -> bool:
        """Take in one iteration; whether a new habit shows with the occasion that has just ended.

        Args:
            duration_s: How long it took.
            usual_s: Mean of the last iterations without their slowest.
            margin: Factor on what the occasions must cost, >= 1.
        """
        is_long = duration_s > _LONG * usual_s
        ended = [] if is_long else self._row
        self._row = [*self._row[-_IN_A_ROW:], duration_s] if is_long else []
        if ended and len(ended) <= _IN_A_ROW:
            excess_s = sum(ended) - len(ended) * usual_s
            if excess_s >= _LEAST_EXCESS * usual_s:
                began = self._seen - len(ended)
                self._known.append(_Occasion(began, self._clock_s - sum(ended), excess_s))
        self._seen += 1
        self._clock_s += duration_s
        return bool(ended) and self._is_habit(margin)

    def _is_habit(self, margin: float) -> bool:
        run = self._latest()
        if len(run) < _HABIT or self._is_chance(run):
            return False
        first, last = run[0], run[-1]
        interval, period_s = _interval(run), (last.began_s - first.began_s) / (len(run) - 1)
        # Iterations before the first one that belong to it say nothing of before.
        if not _CLOSEST <= interval <= _MEMORY or first.began < (1 + _BEFORE) * interval:
            return False
        mean_s, before_s = period_s / interval, first.began_s / first.began
        if mean_s - before_s < margin * _LEAST_LOST * mean_s:
            return False
        self.count, self.interval, self.period_s = len(run), interval, period_s
        self.before_s, self.mean_s = before_s, mean_s
        return True

    def _is_chance(self, run: Sequence[_Occasion]) -> bool:
        """Whether others since the first are nearly as long: of many that scatter, some few lie regularly."""
        least = _ELSE * min(one.excess_s for one in run)
        return sum(one.excess_s >= least for one in self._known if one.began >= run[0].began) > len(run)

    def _latest(self) -> Sequence[_Occasion]:
        """The last occasions that are alike and regular; none if there was one of their size shortly before them."""
        alike: list[_Occasion] = []
        longest = max((one.excess_s for one in list(self._known)[-1:]), default=0.0)
        for one in reversed(self._known):
            if one.excess_s < _ALIKE * longest:
                continue
            if one.excess_s * _ALIKE > longest or not _is_regular([*alike, one]):
                return [] if alike[-1].began - one.began < _BEFORE * _interval(alike) else alike[::-1]
            alike.append(one)
        return alike[::-1]


def _interval(occasions: Sequence[_Occasion]) -> float:
    """Mean distance of occasions, in or against their order, in iterations; a very long one of a single one."""
    return abs(occasions[0].began - occasions[-1].began) / (len(occasions) - 1) if len(occasions) > 1 else _MEMORY


def _is_regular(occasions: Sequence[_Occasion]) -> bool:
    distances = [abs(one.began - other.began) for one, other in pairwise(occasions)]
    mean = sum(distances) / max(len(distances), 1)
    return all(abs(one - mean) <= max(_REGULAR * mean, 1.0) for one in distances)
