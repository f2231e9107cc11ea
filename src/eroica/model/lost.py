"""Time lost per iteration against a reference, and how much of it noise accounts for: one rule for windows and jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median, stdev

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Iterations of healthy jobs take up to this share longer in one window than in another, and at a job's end against its
#: best level (1.25 in the corpus). No scatter inside a window shows that.
LEAST = 0.3
#: Means of so many consecutive parts of a series tell its scatter: what lasts for a while is one deviation, not many.
_PARTS = 10
#: A difference is noise up to so many standard errors, of means or of ranks.
_ERRORS = 3.0
#: Student's quantile at p = 0.99865 over three, by degrees of freedom; beyond them the difference no longer matters.
_STUDENT = {1: 78.6, 2: 6.4, 3: 3.07, 4: 2.21, 5: 1.84, 6: 1.63, 7: 1.51, 8: 1.43, 9: 1.36}
#: Stretches of about a second that make a level, and levels without which a job has no past.
_LEVEL = 10
_FEWEST = 3
#: A level must be so many times the highest one that the job has come back from.
_LIVED = 1.1


def noise_factor(freedom: int) -> float:
    """Return Student's quantile over the normal one at three standard errors, by degrees of freedom; at least 1."""
    return _STUDENT.get(freedom, 1.0)


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """Mean iteration now and before, and the difference that noise accounts for; all in the same unit of time.

    Attributes:
        now: Mean iteration now.
        before: Mean iteration of the reference.
        noise: The difference that noise accounts for.
        is_inside: The reference is another window, not the job's pace outside of windows.
    """

    now: float
    before: float
    noise: float
    is_inside: bool = False

    @property
    def beyond(self) -> float:
        """What is lost beyond noise; negative where less is lost."""
        return self.now - self.before - self.noise

    @property
    def is_sure(self) -> bool:
        """True if iterations take longer than before by more than noise."""
        return self.beyond > 0

    def rest(self, explained: float) -> float:
        """Return the time lost that causes leave unexplained; 0 where noise accounts for it.

        Args:
            explained: What causes account for, in the same unit.
        """
        rest = self.now - self.before - explained
        return max(rest, 0.0) if rest > self.noise else 0.0


def lost(now: Sequence[float], before: Sequence[float], least: float, most: float = math.inf) -> Lost:
    """Compare iterations with those of a reference.

    Noise is what healthy windows differ by, and what the scatter of both leaves uncertain. A few very long iterations
    make a mean uncertain, but not the order: where the order is sure beyond the least, the scatter does not count.

    Args:
        now: Times of iterations in their order, at least one.
        before: The same of the reference; a single one is a mean of unknown scatter, taken to be that of `now`.
        least: Share of the reference that is noise in any case.
        most: Share of it that scatter may make at most: so much longer is longer, however few iterations show it.
    """
    usual = fmean(before)
    error = math.hypot(_error(now), _error(before if len(before) > 1 else now))
    beyond_least = rank_errors(now, [one + least * usual for one in before])
    scatter = 0.0 if beyond_least >= _ERRORS else _ERRORS * error
    return Lost(now=fmean(now), before=usual, noise=max(least * usual, min(scatter, most * usual)))


def lost_at_end(stretches: Sequence[float]) -> Lost | None:
    """Compare the end of a job with its best level; None where it was too short.

    Levels that the job has come back from are noise, but for those before it first was about as fast as at its best.

    Args:
        stretches: Mean iteration of each stretch of about a second, in order, without those in which windows were open.
    """
    count = len(stretches) // _LEVEL
    if count < _FEWEST:
        return None
    first = len(stretches) - count * _LEVEL
    levels = [median(stretches[at : at + _LEVEL]) for at in range(first, len(stretches), _LEVEL)]
    best = min(levels)
    good = [at for at, level in enumerate(levels) if level <= (1 + LEAST) * best]
    lived = max(levels[good[0] : good[-1] + 1])
    return Lost(now=levels[-1], before=best, noise=max(LEAST * best, _LIVED * lived - best))


def _error(times: Sequence[float]) -> float:
    """Return the standard error of a mean, by the means of consecutive parts; infinite for a single time."""
    count = min(len(times), _PARTS)
    if count < 2:
        return math.inf
    edges = [round(at * len(times) / count) for at in range(count + 1)]
    means = [fmean(times[start:end]) for start, end in pairwise(edges)]
    return noise_factor(count - 1) * stdev(means) / math.sqrt(count)


def rank_errors(now: Sequence[float] | Floats, before: Sequence[float] | Floats) -> float:
    """Measure how surely times now are longer than those before, in standard errors, by their order alone.

    Mann and Whitney's statistic with its correction for ties, by the normal approximation. A few very long iterations
    make a mean uncertain, but not the order: what comes in most iterations and never came before is no accident.

    Returns:
        0 for single times, and where one before is NaN.
    """
    now_I, before_J = np.asarray(now, dtype=np.float64), np.asarray(before, dtype=np.float64)
    i, j = now_I.size, before_J.size
    if min(i, j) < 2 or np.isnan(before_J).any():
        return 0.0
    ordered = np.sort(before_J)
    below = np.searchsorted(ordered, now_I, side="left") + np.searchsorted(ordered, now_I, side="right")
    _, ties = np.unique(np.concatenate([now_I, before_J]), return_counts=True)
    variance = i * j / 12 * (i + j + 1 - float((ties**3 - ties).sum()) / ((i + j) * (i + j - 1)))
    return (float(below.sum()) / 2 - i * j / 2) / math.sqrt(max(variance, 1e-9))
