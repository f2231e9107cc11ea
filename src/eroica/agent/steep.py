"""Iterations that have become many times as long, all at once: a pure state machine over durations.

A mean of fifty iterations waits for fifty of them. Where each suddenly takes a second instead of twenty milliseconds,
that is a minute or two, in which nobody doubts any more that something has happened.
"""

from __future__ import annotations

from collections import deque

#: So many iterations in a row, each so many times as long as the highest means the job has lived through, for so long:
#: an evaluation, a checkpoint or a moment without a core is over by then.
_ITERATIONS = 12
_TIMES = 3.0
_LASTING_S = 15.0


class Steep:
    """The last iterations of one worker.

    Attributes:
        count: Iterations that were looked at last.
        mean_s: Their mean, seconds.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean_s = 0.0
        self._row = 0
        self._row_s = 0.0
        self._last: deque[float] = deque(maxlen=_ITERATIONS)

    def observe(self, duration_s: float, highest_s: float, margin: float) -> bool:
        """Take in one iteration.

        Args:
            duration_s: How long it took.
            highest_s: The highest mean of this job's past, but for the few highest; NaN: there is none yet.
            margin: Factor on what a rise must exceed, >= 1.

        Returns:
            Whether the row of long ones is worth a window; again after as many more.
        """
        if not duration_s >= _TIMES * margin * highest_s:
            self._row, self._row_s = 0, 0.0
            self._last.clear()
            return False
        self._row += 1
        self._row_s += duration_s
        self._last.append(duration_s)
        if self._row < _ITERATIONS or self._row_s < _LASTING_S or self._row % _ITERATIONS:
            return False
        self.count, self.mean_s = len(self._last), sum(self._last) / len(self._last)
        return True
