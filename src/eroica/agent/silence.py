"""Tell when a worker's hooks are quiet for longer than this job can explain: a pure state machine over polls.

Only time in which the agent was watching counts: an agent that was stopped, or starved of its CPU, for seconds knows
nothing about them, and whoever stopped it may have stopped the training too.

Source: EROICA, section 4.1: blocked when five mean iterations bring no event. Deviations: at least `silence_s`, for the
iterations may last milliseconds; twice the longest pause that the worker has survived, for checkpoints and evaluations
come again; and a limit of its own while the iteration pattern is not known.
"""

from __future__ import annotations

from eroica.settings import Settings

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
