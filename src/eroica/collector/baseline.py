"""The baseline window of a job: when it is taken, what it holds, and whether it shows a healthy job."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import median

from eroica.collector.arrivals import heaviest
from eroica.collector.ledger import History
from eroica.model.pattern import WorkerPattern
from eroica.model.shares import percent
from eroica.model.window import FAR_SLOWER, SLOWER_INSIDE
from eroica.settings import Settings
from eroica.wire.messages import WorkerStatus

#: Windows opened for a baseline; a job in which so many came to nothing goes without.
_TRIES = 3
#: A job that was slower than its best by this factor when its baseline window opened was not healthy.
_FASTER_LATER = 1.15
#: Share of a slowdown that a comparison must be able to show, to be better than none.
_MOST = 0.5
#: Workers wait for each other, so a few tell how all iterations went.
_LOOKED_AT = 64
#: A baseline window that takes the place of another opens only where everybody is this near to the best.
_NEAR_BEST = 1.05
#: Others disturb workers that wait for a core for this share of the time, by cores and by a share of the host's cores.
_WAITED, _CORES, _CORES_SHARE = 0.1, 0.2, 0.1
#: Iterations of the mean that workers report.
_IN_A_MEAN = 50


class Baseline:
    """The baseline that later windows of a job are compared with.

    Attributes:
        patterns: Heads of those of the best baseline window that was taken, trusted or not; empty without one.
        disturbed: Who took the workers' cores while it was taken, one clause; "" if nobody did.
        was_slow: A longer window has confirmed that the job was slow already.
    """

    def __init__(self, settings: Settings) -> None:
        self.patterns: tuple[WorkerPattern, ...] = ()
        self.disturbed = ""
        self._settings = settings
        self._taken_s: float | None = None
        self._over_at = math.inf
        self._came_back = False
        self.was_slow = False
        self._done = not settings.baseline_window
        self._tries = 0

    def is_due(self, training: Sequence[WorkerStatus], living: int) -> bool:
        """Return whether a baseline window is due: all workers train steadily, near the best if it replaces another.

        No worker is far slower than at its best: such a window would show what the next one is to find.

        Args:
            training: Workers in full swing, at least one.
            living: Workers whose process is there.
        """
        if self._done:
            return False
        world = max(status.worker.world_size for status in training)
        if len(training) < min(world, living) or not all(status.steady for status in training):
            return False
        means = [(status.current_s or 0.0, status.baseline_s) for status in training]
        if self.patterns and any(current_s > _NEAR_BEST * (best_s or 0.0) for current_s, best_s in means):
            return False
        clearly_faster_s = (self._taken_s or math.inf) / _FASTER_LATER
        if self.was_slow and any((best_s or math.inf) > clearly_faster_s for _, best_s in means):
            return False
        return all(current_s < FAR_SLOWER * (best_s or math.inf) for current_s, best_s in means)

    def opened(self) -> None:
        """A window is opened for it; the last try counts as done, whatever comes of it."""
        self._tries += 1
        self._done = self._tries >= _TRIES

    def gave_way(self) -> None:
        """It became the window for a trigger before it opened: that was no try."""
        self._tries -= 1
        self.distrust()

    def taken(self, patterns: Iterable[WorkerPattern], iteration_s: float | None) -> None:
        """The window is over.

        Args:
            patterns: What came of it; may be empty.
            iteration_s: Mean iteration when the window was asked for, seconds.
        """
        found = tuple(pattern for pattern in patterns if pattern.has_trace)
        if not found:  # the one before, if there is one, is better than none
            return
        self._done, disturbed = True, disturbance(found)
        if self.patterns and (bool(disturbed), _mean_s(found)) > (bool(self.disturbed), self._captured_s):
            return
        self.patterns, self.disturbed, self._taken_s, self.was_slow = found, disturbed, iteration_s, False
        self._await_return()

    def watch(self, training: Sequence[WorkerStatus]) -> None:
        """Note how fast the job is; to be called as long as it trains."""
        is_past_it = bool(training) and all(status.iteration >= self._over_at for status in training)
        if self._came_back or not self._taken_s or not self.patterns or not is_past_it:
            return
        # a best mean above that of then: what was before the first trace of a device is forgotten (`agent.slowdown`)
        usual = [max(self._taken_s, status.baseline_s or 0.0) for status in training]
        now = [status.current_s or math.inf for status in training]
        self._came_back = all(one <= _FASTER_LATER * then for one, then in zip(now, usual, strict=True))
        if self._came_back and self._is_slower_inside and self._tries < 2:  # a slow stretch, or capturing itself
            self.distrust()

    def retake_if_better(self, training: Sequence[WorkerStatus]) -> None:
        """Have another window taken once the job is faster than it was then: at its start, or beside other work."""
        faster = _NEAR_BEST if self.disturbed else _FASTER_LATER
        limit_s = (self._taken_s or 0.0) / faster
        if self._done and self.patterns and all((one.current_s or math.inf) <= limit_s for one in training):
            self.distrust()

    @property
    def _captured_s(self) -> float:
        """Mean iteration inside the window, of the median worker."""
        return _mean_s(self.patterns)

    def is_far_faster_than(self, patterns: Collection[WorkerPattern]) -> bool:
        """Return whether a later window's iterations take far longer: the job has changed, however it began.

        Args:
            patterns: Of the later window.
        """
        return bool(patterns and self.patterns) and _mean_s(patterns) >= FAR_SLOWER * self._captured_s

    @property
    def _is_slower_inside(self) -> bool:
        return self._captured_s >= SLOWER_INSIDE * (self._taken_s or math.inf)

    def pace_in(self, patterns: Collection[WorkerPattern], told_s: float | None) -> float | None:
        """Mean iteration of a later window, as it would be outside of windows, seconds.

        A window may be asked for just before a job gets slow, and then shows far more than the trigger saw. Capturing
        makes iterations of both windows longer alike.

        Args:
            patterns: Of the later window.
            told_s: Mean iteration when it was asked for, seconds.
        """
        if not (patterns and self.patterns and self._taken_s and self._captured_s):
            return told_s
        return max(told_s or 0.0, self._taken_s * _mean_s(patterns) / self._captured_s)

    def doubts(self, best_s: float | None, now_s: float | None = None) -> str:
        """Tell why the baseline window was not taken from a healthy job, "" if nothing says so.

        All means compared here are of iterations outside windows, as the agents saw them: capturing slows them alike.
        A job that was not at its best, but is far slower now, is better compared with that than with nothing: what it
        was slow for then has not made it slower since.

        Args:
            best_s: Mean iteration of the job's best stretch so far, seconds.
            now_s: That of the window that it is compared with, seconds; see `pace_in`.
        """
        taken_s, expected_s = self._taken_s, self._settings.expected_iteration_s
        if not self.patterns or not taken_s:
            return ""
        is_far_slower = self._is_far_slower(now_s, best_s)
        if self.was_slow and not is_far_slower:
            return "it was slow from its start"
        if self.disturbed and not is_far_slower:
            return self.disturbed
        if self._is_slower_inside and not (self._came_back and self._tries > 1):
            inside = f"{1e3 * self._captured_s:.3g} ms"
            return f"iterations took {inside} in it, and {1e3 * taken_s:.3g} ms just before it opened"
        at = f"iterations took {1e3 * taken_s:.3g} ms when it was taken"
        if 0 < expected_s < taken_s and not is_far_slower:
            return f"{at}, and {1e3 * expected_s:.3g} ms are expected"
        if best_s and taken_s >= _FASTER_LATER * best_s and not is_far_slower:
            return f"{at}, and {1e3 * best_s:.3g} ms at the job's best"
        return ""

    def shows_a_part(self, best_s: float | None, now_s: float | None) -> str:
        """Say which part of a slowdown a comparison with this baseline can show; "" for the whole.

        Args:
            best_s: Mean iteration of the job's best stretch so far, seconds.
            now_s: That of the window that it is compared with, seconds; see `pace_in`.
        """
        taken_s = self._taken_s
        if not (self.patterns and taken_s and best_s and now_s) or taken_s < _FASTER_LATER * best_s:
            return ""
        return (
            f"Iterations took {1e3 * taken_s:.3g} ms when the baseline window was taken, {1e3 * best_s:.3g} ms at their"
            f" best: only what came after that window is seen, {percent((now_s - taken_s) / (now_s - best_s))} of it."
        )

    def _is_far_slower(self, now_s: float | None, best_s: float | None) -> bool:
        """Return whether most of the job's present slowdown has come since the baseline window was taken."""
        taken_s, now = self._taken_s or math.inf, now_s or 0.0
        return now >= _FASTER_LATER * taken_s and now - taken_s >= _MOST * (now - min(best_s or taken_s, taken_s))

    def distrust(self) -> None:
        """Another baseline window may take its place, as long as there are tries left."""
        self._done = not self._settings.baseline_window or self._tries >= _TRIES

    def resume(self, history: History) -> None:
        """Go on with the baseline window of a collector before this one, if it took any."""
        if not history.baseline:
            return
        self.patterns, self._done = history.baseline, True
        self.disturbed = disturbance(self.patterns)
        taken_in = history.baseline[0].window_id
        self._taken_s = next((w.current_iteration_s for w in history.windows if w.window_id == taken_in), None)
        self.was_slow = any(
            line.purpose == "early" and line.verdict == "slow" and line.window_id > taken_in for line in history.lines
        )
        self._await_return()

    def _await_return(self) -> None:
        """A mean of iterations that all came after the window tells whether these are as fast as before it."""
        self._came_back = False
        last = max((pattern.last_iteration for pattern in self.patterns), default=math.inf)
        self._over_at = last + _IN_A_MEAN


def disturbance(patterns: Sequence[WorkerPattern]) -> str:
    """Say in a clause who took cores that the workers of a window waited for; "" if nobody did.

    Args:
        patterns: Of the window. Their hosts counted the cores.
    """
    worst, told = 0.0, ""
    for one in patterns[:: max(1, len(patterns) // _LOOKED_AT)]:
        facts = one.host_facts
        cores, waited = facts.get("cores_outside", 0.0), facts.get("run_queue_wait", 0.0)
        least = max(_CORES, _CORES_SHARE * facts.get("cpu_count", 0.0))
        if waited < _WAITED or cores < least or cores <= worst:
            continue
        names = ", ".join(dict.fromkeys(each.name for each in heaviest(one.neighbors) if each.cpu_cores >= _CORES))
        who = f"other processes ({names})" if names else "other processes"
        of = f" of {facts['cpu_count']:.0f}" if "cpu_count" in facts else ""
        worst, told = cores, f"{who} used {cores:.1f}{of} cores of {one.worker.host} when it was taken"
    return told


def _mean_s(patterns: Iterable[WorkerPattern]) -> float:
    """Mean iteration of the median worker, seconds."""
    return median(one.duration_s / max(one.last_iteration - one.first_iteration, 1) for one in patterns)
