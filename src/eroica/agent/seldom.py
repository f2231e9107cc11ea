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
from math import inf
from typing import NamedTuple

from eroica.wire.patience import REGULAR, off_by

#: An iteration so many times as long as the usual one is long; more of them in a row are a stretch (`bursts`).
_LONG = 1.5
_IN_A_ROW = 4
#: An occasion takes at least as much beyond the usual as so many iterations.
_LEAST_EXCESS = 1.0
#: So many occasions make a habit...
_HABIT = 4
#: ...if each takes at least this share of the last one, and none is longer by as much...
_ALIKE = 0.6
#: ...and no distance between two of them is further than `REGULAR`, or one iteration, from the mean distance...
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
_MOST = 64
#: A window is asked for so many seconds, beside the iterations that it may be off by, before the next one is due.
_AHEAD_S = 30.0


class _Occasion(NamedTuple):
    """Long iterations in a row.

    Attributes:
        iteration: Id of the first one.
        seen: Iterations taken in before it.
        began_s: Sum of their durations: when it began.
        excess_s: Time that the long iterations took beyond the usual.
        before_s: The same of all occasions before.
        is_after_gap: Iterations were left out since the occasion before.
    """

    iteration: int
    seen: int
    began_s: float
    excess_s: float
    before_s: float
    is_after_gap: bool


class Seldom:
    """Long iterations of one worker.

    Attributes:
        count: Occasions of the habit when it was last noticed.
        interval: Iterations from one to the next, mean.
        period_s: The same in seconds.
        next_iteration: Where the next one is expected.
        before_s: Mean iteration, had they cost as little as all long iterations before the first of them, seconds.
        mean_s: Mean iteration since the first of them, seconds.
    """

    def __init__(self) -> None:
        self.count = self.next_iteration = 0
        self.interval = self.period_s = self.before_s = self.mean_s = 0.0
        self._known: deque[_Occasion] = deque(maxlen=_MOST)
        self._row: list[float] = []
        self._row_from = (0, 0, 0.0)
        self._seen = self._latest = self._from = 0
        self._clock_s = self._excess_s = 0.0
        self._has_gap = self._is_known = False

    def observe(self, iteration: int, seconds: float, usual_s: float, margin: float = 1.0, width: int = 1) -> bool:
        """Take in one iteration; whether a habit is new, and its next occasion near enough to open a window for it.

        Args:
            iteration: Its id; those that are left out leave a gap.
            seconds: How long it took.
            usual_s: Mean of the last ones without their slowest.
            margin: Factor on what the occasions must cost, >= 1.
            width: It is a cycle of so many iterations, this id being the last one's.
        """
        first = iteration - width + 1
        self._from = self._from or first
        if self._latest and first != self._latest + 1:
            self._has_gap, self._row = True, []
        is_long, has_ended = seconds > _LONG * usual_s, False
        if is_long:
            if not self._row:
                self._row_from = (first, self._seen, self._clock_s)
            self._row = [*self._row[-_IN_A_ROW:], seconds]
        elif self._row:
            has_ended = self._end_row(usual_s)
        self._latest = iteration
        self._seen += width
        self._clock_s += seconds
        if has_ended:
            self._is_known = self._is_habit(margin)
        if not self._is_known:
            return False
        ahead = off_by(self.interval) + _AHEAD_S * width / usual_s
        self._is_known = iteration < self.next_iteration - ahead
        return not self._is_known

    def _end_row(self, usual_s: float) -> bool:
        """Return whether the long iterations that are over are an occasion."""
        row, self._row = self._row, []
        excess_s = sum(row) - len(row) * usual_s
        if len(row) > _IN_A_ROW or excess_s < _LEAST_EXCESS * usual_s:
            return False
        self._known.append(_Occasion(*self._row_from, excess_s, self._excess_s, self._has_gap))
        self._excess_s += excess_s
        self._has_gap = False
        return True

    def _is_habit(self, margin: float) -> bool:
        run = self._last_alike()
        steps = _steps(run)
        if len(run) < _HABIT or len(steps) < _HABIT - 2 or self._is_chance(run):
            return False
        first, last = run[0], run[-1]
        interval = sum(later.iteration - one.iteration for one, later in steps) / len(steps)
        # Iterations before the first one that belong to it say nothing of before.
        if not _CLOSEST <= interval <= _MEMORY or first.iteration - self._from < (1 + _BEFORE) * interval:
            return False
        period_s = sum(later.began_s - one.began_s for one, later in steps) / len(steps)
        mean_s, each_s = period_s / interval, sum(one.excess_s for one in run) / len(run)
        lost_s = each_s / interval - first.before_s / first.seen
        if lost_s < margin * _LEAST_LOST * mean_s:
            return False
        self.count, self.interval, self.period_s = len(run), interval, period_s
        self.next_iteration = round(last.iteration + interval)
        self.before_s, self.mean_s = mean_s - lost_s, mean_s
        return True

    def _is_chance(self, run: Sequence[_Occasion]) -> bool:
        """Return whether other occasions since the first are nearly as long: of many scattered, some are regular."""
        least = _ELSE * min(one.excess_s for one in run)
        return sum(one.excess_s >= least for one in self._known if one.iteration >= run[0].iteration) > len(run)

    def _last_alike(self) -> Sequence[_Occasion]:
        """The last occasions that are alike and regular; none if there was one of their size shortly before them."""
        alike: list[_Occasion] = []
        shortest, longest = inf, 0
        for one in reversed(self._known):
            if alike and one.excess_s < _ALIKE * alike[0].excess_s:
                continue
            step = alike[-1].iteration - one.iteration if alike and not alike[-1].is_after_gap else 0
            near, far = (min(shortest, step), max(longest, step)) if step else (shortest, longest)
            is_larger = bool(alike) and one.excess_s * _ALIKE > alike[0].excess_s
            if is_larger or (far and far - near > 2 * max(REGULAR * (near + far) / 2, 1.0)):
                usual = (shortest + longest) / 2 if longest else inf
                return [] if alike[-1].iteration - one.iteration < _BEFORE * usual else alike[::-1]
            alike.append(one)
            shortest, longest = near, far
        return alike[::-1]


def _steps(run: Sequence[_Occasion]) -> list[tuple[_Occasion, _Occasion]]:
    """Occasions that follow each other, nothing left out between them."""
    return [(one, later) for one, later in pairwise(run) if not later.is_after_gap]
