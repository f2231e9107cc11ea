"""Iterations that are slow for a while, then fast again, over and over: a pure state machine over durations.

A mean of many iterations hides a link that is slow for some seconds of each minute, or a process that comes back: every
mean is a little higher, none of them holds. So stretches are counted. One may be anything; the third that looks like
the first two is a way in which the job loses time, and it is looked at while it lasts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: An iteration so many times as long as the best mean is slow; so must this share of a burst's be: of the minutes in
#: which a shared machine is a little slower, hardly more than the first moments are.
_SLOW = 1.5
_LEAST_SLOW = 1 / 3
#: So many slow ones in a row begin a burst; of fewer, an evaluation or a collection may be the reason.
_BEGIN = 5
#: So many in a row end it, if their mean is this near to the best one: the job runs freely again.
_END = 10
_FREE = 1.2
#: Bursts that make a habit, and the share of all time since the first of them that they cost.
_HABIT = 3
_LEAST_LOST = 0.10
#: The first bursts are forgotten after so many iterations without a new one, and of very many the oldest.
_MEMORY = 5000
_MOST = 64


@dataclass
class _Burst:
    """First iteration and moment, counted from the first one seen; iterations, what they took, how many are slow."""

    began: int
    began_s: float
    iterations: int
    seconds: float
    slow: int

    def lost_s(self, best_s: float) -> float:
        return self.seconds - self.iterations * best_s


class Bursts:
    """Bursts of one worker's slow iterations.

    Attributes:
        count: Those that made the habit when it was last noticed.
        mean_s: Mean iteration since the first of them, seconds.
        period_s: From the beginning of one to that of the next, mean, seconds.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean_s = 0.0
        self.period_s = 0.0
        self._known: deque[_Burst] = deque(maxlen=_MOST)
        self._row: list[float] = []
        self._open = False
        self._seen = 0
        self._clock_s = 0.0

    def observe(self, duration_s: float, best_s: float, margin: float = 1.0) -> bool:
        """Take in one iteration; whether a habit shows with it.

        Args:
            duration_s: How long it took.
            best_s: The job's best mean so far.
            margin: Factor on what bursts must cost, >= 1.
        """
        self._seen += 1
        self._clock_s += duration_s
        if self._open:
            self._go_on(duration_s, best_s)
            return False
        self._row = [*self._row, duration_s] if duration_s > _SLOW * best_s else []
        if len(self._row) < _BEGIN:
            return False
        self._begin()
        return self._is_habit(best_s, margin)

    def _begin(self) -> None:
        if self._known and self._seen - self._known[-1].began > _MEMORY:
            self._known.clear()
        count, spent_s = len(self._row), sum(self._row)
        self._known.append(_Burst(self._seen - count, self._clock_s - spent_s, count, spent_s, count))
        self._row, self._open = [], True

    def _go_on(self, duration_s: float, best_s: float) -> None:
        burst = self._known[-1]
        burst.iterations += 1
        burst.seconds += duration_s
        burst.slow += duration_s > _SLOW * best_s
        self._row = [*self._row[-_END + 1 :], duration_s]
        if len(self._row) == _END and sum(self._row) <= _FREE * _END * best_s:
            burst.iterations -= _END
            burst.seconds -= sum(self._row)
            self._row, self._open = [], False

    def _is_habit(self, best_s: float, margin: float) -> bool:
        slow = [burst for burst in self._known if burst.slow >= _LEAST_SLOW * burst.iterations]
        if len(slow) < _HABIT:
            return False
        elapsed = self._clock_s - slow[0].began_s
        lost = sum(burst.lost_s(best_s) for burst in slow)
        if lost < margin * _LEAST_LOST * elapsed:
            return False
        self.count = len(slow)
        self.period_s = (slow[-1].began_s - slow[0].began_s) / (self.count - 1)
        self.mean_s = elapsed / max(self._seen - slow[0].began, 1)
        return True
