"""Judge the pace of one worker: whether its iterations got slower than at their best, and whether it is silent.

Both are pure state machines: over iterations, and over polls.

Source: EROICA, section 4.1: "the mean of the last 50 iterations is more than 5 % above the recent shortest". Deviation:
one lucky iteration, an evaluation or a busy machine would raise that alarm on a healthy job. So the seconds that a rise
has cost are added up (`change`), wherever in the job it comes and however slowly. The first iterations count for
nothing.

Blocked, by the same section: five mean iterations bring no event. Deviations: at least `silence_s`, for the iterations
may last milliseconds; twice the longest pause that the worker has survived, for checkpoints and evaluations come again;
and a limit of its own while the iteration pattern is not known. Only time in which the agent was watching counts: one
that was stopped, or starved of its CPU, for seconds knows nothing about them, and whoever stopped it may have stopped
the training too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

from eroica.agent.change import Change
from eroica.model.shares import percent
from eroica.settings import Settings

#: Iterations after (re)learning that nothing is judged by, and iterations of the mean that is reported (N).
_WARM_UP, _IN_A_MEAN = 10, 50
#: Fewer iterations have no mean.
_FEWEST = 25
#: A window that found nothing raises the margin by this factor, up to this one.
_BACKOFF, _LARGEST_MARGIN = 2.0, 4.0
#: Iterations after a device was traced for the first time, whose mean is compared with the one before.
_AFTER_TRACING = 15
#: So many times as long they are for what tracing leaves behind: CUPTI stays attached, which made iterations that are
#: bound by launching up to 1.4 times as long (docs/gpu.md). What is more is the job's own doing.
_LEFT_BEHIND = (1.05, 1.5)
#: Iterations longer than this, seconds, are not waited for one by one before the baseline window, but so many are.
_QUICK_S, _LEAST_BEFORE_BASELINE = 0.25, 10


class Trigger(NamedTuple):
    """A worker asks for a window.

    Attributes:
        kind: "slow" against the job's own past, "expected" against what the user said.
        baseline_s: Mean iteration of the job's best stretch, or what the user expects.
        current_s: Usual iteration now.
        reason: One clause for people.
        lasted: Iterations since the change began; 0 where that is not known.
    """

    kind: Literal["slow", "expected"]
    baseline_s: float
    current_s: float
    reason: str
    lasted: int


def trimmed_mean(durations: Sequence[float], left_out: float) -> float:
    """Mean of the durations without the slowest ones.

    Args:
        durations: Seconds, at least one.
        left_out: Fraction of the slowest that does not count, rounded up to whole iterations.
    """
    kept = sorted(durations)[: len(durations) - math.ceil(left_out * len(durations))] or durations
    return math.fsum(kept) / len(kept)


class Slowdown:
    """The slow trigger of one worker.

    Args:
        settings: `slowdown`, `one_off_fraction`, `expected_iteration_s`, `baseline_after_iterations`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._margin = 1.0
        self.restart()
        self._learned_at: int | None = 0  # iterations before the pattern was learned; None = not known yet

    def restart(self) -> None:
        """The iterations mean something else from now on (another pattern was learned): forget the past."""
        self._begin()
        self._learned_at = None
        self._seen = 0
        self._untraced_s: float | None = None
        self._after_tracing: list[float] = []

    def traced(self) -> None:
        """A device was traced for the first time: what that leaves behind is no change of the job's own pace."""
        self._untraced_s, self._after_tracing = self.current_s, []

    def _begin(self) -> None:
        """Nothing is known of the past."""
        self._recent: deque[float] = deque(maxlen=_IN_A_MEAN)
        self._change, self._long = Change(self._settings), Change(self._settings, is_long=True)

    @property
    def baseline_s(self) -> float | None:
        """Mean iteration of the best stretch so far, seconds; None before the first."""
        best_s = self._change.best_s
        return best_s if best_s < math.inf else None

    @property
    def current_s(self) -> float | None:
        """Mean of the last iterations without their slowest, seconds; None before there are enough."""
        count = len(self._recent)
        is_long = count >= _LEAST_BEFORE_BASELINE and sum(self._recent) >= _FEWEST * _QUICK_S
        if count < _FEWEST and not is_long:
            return None
        return trimmed_mean(self._recent, self._settings.one_off_fraction)

    @property
    def steady(self) -> bool:
        """Enough iterations, and the last ones not slower than before: a window now shows the healthy job.

        Enough also to notice afterwards that the job got slow meanwhile.
        """
        after = self._settings.baseline_after_iterations
        some = self._seen >= min(after, max(_LEAST_BEFORE_BASELINE, after * _QUICK_S / (self.current_s or _QUICK_S)))
        return (
            some
            and self.baseline_s is not None
            and self.current_s is not None
            and not (self._change.is_likely or self._long.is_likely)
        )

    def absolve(self) -> None:
        """A window found nothing wrong: ask for more before asking again."""
        self._margin = min(self._margin * _BACKOFF, _LARGEST_MARGIN)
        self._change.absolve()
        self._long.absolve()

    def observe(self, iteration: int, duration_s: float) -> Trigger | None:
        """Take in one completed iteration.

        Args:
            iteration: Its id; the first ones of the job and after a restart are left out.
            duration_s: How long it took; values that are not positive (start unknown) are left out.

        Returns:
            A trigger when the rise is certain, and again each time that as much more was lost.
        """
        if self._learned_at is None:
            self._learned_at = iteration - 1
        if iteration <= self._learned_at + _WARM_UP or not 0.0 < duration_s < math.inf:
            return None
        self._seen += 1
        if self._untraced_s is not None:
            self._compare_tracing(duration_s, self._untraced_s)
        self._recent.append(duration_s)
        return self._judge(duration_s) or self._judge_expected()

    def observe_beside_window(self, duration_s: float) -> Trigger | None:
        """Take in an iteration during which a window was captured or summarized: only far longer ones say anything.

        Args:
            duration_s: How long it took.
        """
        if not self._seen or not 0.0 < duration_s < math.inf:
            return None
        return self._judge(duration_s, beside_window=True)

    def _compare_tracing(self, duration_s: float, before_s: float) -> None:
        """Forget how fast iterations were without what tracing has left behind, once some show it."""
        self._after_tracing.append(duration_s)
        if len(self._after_tracing) < _AFTER_TRACING:
            return
        self._untraced_s, (*known, _) = None, self._after_tracing
        least, most = _LEFT_BEHIND
        if least <= trimmed_mean(self._after_tracing, self._settings.one_off_fraction) / before_s <= most:
            self._begin()
            self._recent.extend(known)
            for one in known:
                self._change.observe(one, self._margin)
                self._long.observe(one, self._margin)

    def _judge(self, duration_s: float, beside_window: bool = False) -> Trigger | None:
        by_block = [(one, one.observe(duration_s, self._margin, beside_window)) for one in (self._change, self._long)]
        change, rise = next((pair for pair in by_block if pair[1] is not None), (self._change, None))
        if rise is None:
            return None
        reason = (
            f"iterations have taken {percent(rise.current_s / rise.best_s - 1.0)} longer than at their best for "
            f"{rise.since_s:.0f} s"
        )
        return Trigger("slow", rise.best_s, rise.current_s, reason, change.lasted)

    def _judge_expected(self) -> Trigger | None:
        """Compare with what the user expects."""
        expected, level_s = self._settings.expected_iteration_s, self._change.level_s
        if level_s is None or not 0.0 < expected < level_s:
            return None
        reason = f"iterations take {level_s:.3g} s, expected {expected:.3g} s"
        return Trigger("expected", expected, level_s, reason, self._change.lasted)


# --- silence ---


_LONGEST_STEP_S = 1.0
#: A silence is so many mean iterations long, and so many times the longest pause that the worker has survived.
_ITERATIONS, _PAUSES = 5.0, 2.0


class Silence:
    """The silence of one worker.

    Args:
        settings: `silence_s`, `silence_learning_s`.

    Attributes:
        silent: Quiet for longer than the limit.
        quiet_s: Watched seconds since something was heard.
        heard: How often something new was heard.
        longest_s: The longest pause survived so far.
    """

    def __init__(self, settings: Settings) -> None:
        self.silent = False
        self.quiet_s = 0.0
        self.heard = 0
        self.longest_s = 0.0
        self._settings = settings
        self._polled_at: float | None = None
        self._last: object = None
        self._limit_s = 0.0
        self._why = ""

    def survived(self, pause_s: float) -> None:
        """A pause that lies in the past, from before we watched."""
        self.longest_s = max(self.longest_s, pause_s)

    def poll(self, now: float, sign: object, mean_iteration_s: float | None, learning: bool, over: bool) -> None:
        """One look at a worker's beat.

        Args:
            now: Agent's clock, seconds.
            sign: Whatever changes when any hook fires.
            mean_iteration_s: Mean of the recent iterations, None before there are any.
            learning: The iteration pattern is not known yet.
            over: The worker has finished or is watched no more; it is never silent.
        """
        before, self._polled_at = self._polled_at, now
        if before is None or sign != self._last or over:
            self.heard += sign != self._last
            self._last = sign
            self.survived(self.quiet_s)
            self.quiet_s, self.silent = 0.0, False
            return
        step_s = max(0.0, now - before)
        self.quiet_s += min(step_s, _LONGEST_STEP_S)
        self._limit_s, self._why = self._limit(mean_iteration_s, learning)
        if step_s <= _LONGEST_STEP_S:  # who has just woken up does not judge
            self.silent = self.quiet_s > self._limit_s

    @property
    def clause(self) -> str:
        """Tell why the worker is silent, with numbers; empty if it is not."""
        if not self.silent:
            return ""
        return f"no event for {self.quiet_s:.1f} s, more than {self._limit_s:.3g} s ({self._why})"

    def _limit(self, mean_iteration_s: float | None, learning: bool) -> tuple[float, str]:
        settings = self._settings
        least = "while it learns what an iteration is" if learning else "the least that counts"
        limits = [
            (settings.silence_learning_s if learning else settings.silence_s, least),
            (_PAUSES * self.longest_s, f"the longest pause so far was {self.longest_s:.3g} s"),
        ]
        if mean_iteration_s is not None:
            mean = f"an iteration takes {mean_iteration_s:.3g} s"
            limits.append((_ITERATIONS * mean_iteration_s, mean))
        return max(limits)
