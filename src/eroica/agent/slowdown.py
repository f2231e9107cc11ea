"""Ask for a window when one worker's iterations become slower than the job's own scatter: a pure state machine.

Source: EROICA, section 4.1: "the mean of the last 50 iterations is more than 5 % above the recent shortest".
Deviations, because one lucky iteration, an evaluation or a busy machine would raise that alarm on a healthy job.

- Means are compared with means: the last N iterations, without their slowest few, with the lowest such mean of the
  horizon.
- The rise must also stand out from the scatter of this job's own means. That is their median absolute deviation, the
  standard error inside a mean, and the high means that the job has lived through.
- Means from after a clean step up are no past to compare with, however many they are: a job that got slow early would
  otherwise soon look as if it had always been so.
- The rise must hold: every part of the last iterations is slower, not just a burst in them, and for some iterations and
  seconds more.
- The same is done with four times as many iterations, for faults that hit only one iteration in ten.
- Means are for small rises. A rise by a sixth or more is found by the seconds it has cost, wherever in the job it comes
  and however slowly; iterations may take a hundredth of a second or a minute (`change`).
- Where iterations take turns (several steps for one rollout), whole cycles are compared.
- The first iterations count for nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Literal, NamedTuple

from eroica.agent.change import Change
from eroica.agent.cycles import Cycles
from eroica.model.shares import percent
from eroica.settings import Settings

_LONG = 4
_LONG_MARGIN = 1.6  # slow drifts show in long means; what they are for costs more than 10 %
_PARTS = 5  # looks per part
_FEWEST = {1: 2, _LONG: 3}  # means of the past without which nothing is compared
_MAD_TO_SIGMA = 1.4826
_LARGEST_MARGIN = 4.0
#: However short iterations are: half an hour of means of 50 that take 50 ms each.
_MOST_MEANS = 720
#: A long past changes slowly: it is looked through so many times while it grows to twice its length.
_LOOKS_BACK = 64
_LIVED_THROUGH = 0.95
_PART_OF_RISE = 0.5
#: A step up: after so many means, all are so much higher than any before. One mean alone may be a lucky start.
_STEPS = ((1, 0.25), (2, 0.10))
#: Iterations after a device was traced for the first time, whose mean is compared with the one before.
_AFTER_TRACING = 15
#: So many times as long they are for what tracing leaves behind: CUPTI stays attached, which made iterations that are
#: bound by launching up to 1.4 times as long (docs/gpu.md). What is more is the job's own doing.
_LEFT_BEHIND = (1.05, 1.5)
#: Iterations longer than this, seconds, are not waited for one by one before the baseline window, but so many are.
_QUICK_S, _LEAST_BEFORE_BASELINE = 0.25, 10


@dataclass(frozen=True)
class Trigger:
    """A worker asks for a window.

    Attributes:
        kind: "slow" against the job's own past, "expected" against what the user said.
        baseline_s: Lowest mean of the horizon, or what the user expects.
        current_s: Mean of the last iterations.
        reason: One clause for people.
        lasted: Iterations since the change began; 0 where that is not known.
    """

    kind: Literal["slow", "expected"]
    baseline_s: float
    current_s: float
    reason: str
    lasted: int = 0


class Mean(NamedTuple):
    """Mean of some iterations and its standard error, seconds."""

    value: float
    error: float


def trimmed_mean(durations: list[float], left_out: float) -> Mean:
    """Mean of the durations without the slowest ones.

    Args:
        durations: Seconds, at least two.
        left_out: Fraction of the slowest that does not count, rounded up to whole iterations.
    """
    kept = sorted(durations)[: len(durations) - math.ceil(left_out * len(durations))] or durations
    value = math.fsum(kept) / len(kept)
    variance = math.fsum((duration - value) ** 2 for duration in kept) / max(1, len(kept) - 1)
    return Mean(value, math.sqrt(variance / len(kept)))


def before_step(values: list[float]) -> int:
    """Count the oldest means that are the past: those before the first clean step up, else all.

    A step is clean if every later mean is clearly higher than every earlier one: the job has not come back since. The
    mean right before it does not count if it is the highest so far: the step may lie inside it.

    Args:
        values: Means, the oldest first.
    """
    following = [math.inf] * (len(values) + 1)
    for place in range(len(values) - 1, -1, -1):
        following[place] = min(values[place], following[place + 1])
    highest = -math.inf
    for count, value in enumerate(values[:-1], 1):
        highest = max(highest, value)
        if any(count >= fewest and following[count] > highest * (1.0 + rise) for fewest, rise in _STEPS):
            return count - 1 if count > 1 and value == highest else count
    return len(values)


class Scale:
    """Means of `size` iterations, now and in the past. Memory: `size` durations and the horizon's means, 720 or more.

    Args:
        factor: This many times `mean_iterations` and `confirm_iterations`.
        settings: See `Slowdown`.
        cycle: Durations are means over so many iterations, each of which is in so many of them.

    Attributes:
        seen: Durations taken in.
        current: Mean of the last ones, None before there are enough.
        lowest: Lowest mean within the horizon, None before the first.
    """

    def __init__(self, factor: int, settings: Settings, cycle: int = 1) -> None:
        self.size = size = factor * settings.mean_iterations
        self.part = part = factor * max(_PARTS, settings.confirm_iterations // _PARTS * _PARTS)
        self.stride = part // _PARTS
        self._fewest = _FEWEST[factor]
        self._margin = _LONG_MARGIN if factor > 1 else 1.0
        self.current: Mean | None = None
        self.lowest: float | None = None
        self.held = 0
        self._settings = settings
        self._overlap = math.sqrt(cycle)
        self._recent: deque[float] = deque(maxlen=size + part)
        self._waiting: deque[Mean] = deque()  # too young to compare with: a rise that began there shows only now
        self._past: deque[Mean] = deque(maxlen=max(_MOST_MEANS, settings.horizon_iterations // size))
        self._past_s = 0.0
        self.seen = 0
        self._lowest = self._middle = self._worst = self._spread = math.nan

    def add(self, duration_s: float) -> None:
        """Take in one iteration."""
        self._recent.append(duration_s)
        self.seen += 1
        if self.seen % self.stride == 0 and len(self._recent) >= self.part:
            self.current = self._mean(list(islice(self._recent, max(0, len(self._recent) - self.size), None)))
        if self.seen % self.size == 0:
            self._keep_block()

    def slower(self, margin: float) -> float | None:
        """The mean to compare with if the last iterations are slower, else None.

        Args:
            margin: Factor on what a rise must exceed, >= 1.
        """
        current, lowest = self.current, self._lowest
        if current is None or len(self._past) < self._fewest or len(self._recent) < self.size + self.part:
            return None
        limit = self._limit(margin)
        if current.value <= limit or not self.holds(self._middle + _PART_OF_RISE * (limit - self._middle)):
            return None
        return lowest

    def holds(self, limit_s: float) -> bool:
        """Every part of the last iterations is beyond the limit."""
        return all(self._mean(part).value > limit_s for part in self._parts())

    def _parts(self) -> Iterator[list[float]]:
        durations = list(self._recent)
        for start in range(len(durations) - self.part, -1, -self.part):
            yield durations[start : start + self.part]

    def _mean(self, durations: list[float]) -> Mean:
        value, error = trimmed_mean(durations, self._settings.one_off_fraction)
        return Mean(value, error * self._overlap)

    def _limit(self, margin: float) -> float:
        slowdown, spreads = margin * self._margin * self._settings.slowdown, margin * self._settings.spread_factor
        return max(
            self._lowest * (1.0 + slowdown),
            self._middle + spreads * self._spread,
            self._worst * (1.0 + 0.5 * slowdown),
        )

    def _keep_block(self) -> None:
        self._waiting.append(self._mean(list(islice(self._recent, len(self._recent) - self.size, None))))
        if len(self._waiting) > math.ceil(self.part / self.size) + 1:
            self._remember(self._waiting.popleft())
            if self.seen // self.size % max(1, len(self._past) // _LOOKS_BACK) == 0:
                self._look_back()
        self.lowest = min(mean.value for mean in (*self._past, *self._waiting))

    def _remember(self, mean: Mean) -> None:
        """Keep a mean, and let go of those from before the horizon: so many iterations and so many seconds ago."""
        past = self._past
        if len(past) == past.maxlen:
            self._past_s -= past.popleft().value * self.size
        past.append(mean)
        self._past_s += mean.value * self.size
        fewest = max(2, self._settings.horizon_iterations // self.size)
        while len(past) > fewest and self._past_s - past[0].value * self.size > self._settings.horizon_s:
            self._past_s -= past.popleft().value * self.size

    def _look_back(self) -> None:
        """Work out the past's lowest, middle and worst mean, and how far its means scatter (more if they are few)."""
        known = [mean.value for mean in self._past]
        past = list(self._past)[: before_step(known)]
        values = sorted(mean.value for mean in past)
        self._lowest, self._middle = values[0], median(values)
        self._worst = values[math.ceil(_LIVED_THROUGH * len(values)) - 1]
        scatter = _MAD_TO_SIGMA * median(abs(value - self._middle) for value in values)
        inside = median(mean.error for mean in past)
        self._spread = max(scatter, inside) * (1.0 + 2.0 / len(values))


class Slowdown:
    """The slow trigger of one worker.

    Args:
        settings: `mean_iterations`, `slowdown`, `horizon_iterations`, `horizon_s`, `spread_factor`, `one_off_fraction`,
            `confirm_iterations`, `confirm_s`, `warmup_iterations`, `expected_iteration_s`, `healthy_backoff`,
            `baseline_after_iterations`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._margin = 1.0
        self.restart()
        self._learned_at: int | None = 0  # iterations before the pattern was learned; None = not known yet

    def restart(self) -> None:
        """The iterations mean something else from now on (another pattern was learned): forget the past."""
        self._cycles = Cycles()
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
        self._scales = [Scale(factor, self._settings, self._cycles.period) for factor in (1, _LONG)]
        self._change = Change(self._settings)

    @property
    def baseline_s(self) -> float | None:
        """Lowest mean within the horizon, seconds; None before the first."""
        return self._scales[0].lowest

    @property
    def current_s(self) -> float | None:
        """Mean of the last iterations, seconds; None before there are enough."""
        current = self._scales[0].current
        return current.value if current is not None else None

    @property
    def steady(self) -> bool:
        """Enough iterations, and the last ones not slower than before: a window now shows the healthy job.

        Enough also to notice afterwards that the job got slow meanwhile.
        """
        after = self._settings.baseline_after_iterations
        some = self._seen >= min(after, max(_LEAST_BEFORE_BASELINE, after * _QUICK_S / (self.current_s or _QUICK_S)))
        enough = some and self._change.best_s < math.inf
        return enough and self.current_s is not None and not any(scale.held for scale in self._scales)

    def absolve(self) -> None:
        """A window found nothing wrong: ask for more before asking again."""
        self._margin = min(self._margin * self._settings.healthy_backoff, _LARGEST_MARGIN)
        self._change.absolve()
        for scale in self._scales:
            scale.held = 0

    def observe(self, iteration: int, duration_s: float) -> Trigger | None:
        """Take in one completed iteration.

        Args:
            iteration: Its id; the first `warmup_iterations` of the job and after a restart are left out.
            duration_s: How long it took; values that are not positive (start unknown) are left out.

        Returns:
            A trigger when the rise has held for `confirm_iterations` and `confirm_s`, and again as long as it holds.
        """
        if self._learned_at is None:
            self._learned_at = iteration - 1
        warm_from = self._learned_at + self._settings.warmup_iterations
        if iteration <= warm_from or not 0.0 < duration_s < math.inf:
            return None
        self._seen += 1
        counted = self._cycles.add(duration_s)
        if isinstance(counted, list):  # means of single iterations told nothing
            self._begin()
            for at, one in enumerate(counted, iteration - len(counted) + 1):
                self._take(at, one)
            return None
        return self._take(iteration, counted)

    def observe_beside_window(self, duration_s: float) -> Trigger | None:
        """Take in an iteration during which a window was captured or summarized: only far longer ones say anything.

        Args:
            duration_s: How long it took.
        """
        if not self._seen or not 0.0 < duration_s < math.inf:
            return None
        return self._judge_change(duration_s, beside_window=True)

    def _take(self, iteration: int, duration_s: float) -> Trigger | None:
        """Judge by one more duration, of an iteration or of the cycle that it ends."""
        if self._untraced_s is not None:
            self._compare_tracing(iteration, duration_s, self._untraced_s)
        for scale in self._scales:
            scale.add(duration_s)
        looking = (scale for scale in self._scales if scale.seen % scale.stride == 0)
        found = [trigger for trigger in map(self._judge, looking) if trigger is not None]
        first = next((trigger for trigger in (*found, self._judge_change(duration_s)) if trigger is not None), None)
        return replace(first, lasted=self._change.lasted) if first is not None else None

    def _compare_tracing(self, iteration: int, duration_s: float, before_s: float) -> None:
        """Forget how fast iterations were without what tracing has left behind, once some show it."""
        self._after_tracing.append(duration_s)
        if len(self._after_tracing) < _AFTER_TRACING:
            return
        self._untraced_s, (*known, _) = None, self._after_tracing
        least, most = _LEFT_BEHIND
        if least <= trimmed_mean(self._after_tracing, self._settings.one_off_fraction).value / before_s <= most:
            self._begin()
            for at, one in enumerate(known, iteration - len(known)):
                self._take(at, one)

    def _judge_change(self, duration_s: float, beside_window: bool = False) -> Trigger | None:
        rise = self._change.observe(duration_s, self._margin, beside_window)
        if rise is None:
            return None if beside_window else self._judge_expected()
        reason = (
            f"iterations have taken {percent(rise.current_s / rise.best_s - 1.0)} longer than at their best for "
            f"{rise.since_s:.0f} s"
        )
        return Trigger("slow", rise.best_s, rise.current_s, reason, lasted=self._change.lasted)

    def _judge_expected(self) -> Trigger | None:
        """Long iterations against what the user expects: means of fifty would take minutes."""
        expected, level_s = self._settings.expected_iteration_s, self._change.level_s
        if level_s is None or not 0.0 < expected < level_s:
            return None
        return Trigger("expected", expected, level_s, f"iterations take {level_s:.3g} s, expected {expected:.3g} s")

    def _judge(self, scale: Scale) -> Trigger | None:
        lowest, expected = scale.slower(self._margin), self._settings.expected_iteration_s
        too_long = scale.current is not None and 0.0 < expected < scale.current.value and scale.holds(expected)
        scale.held = scale.held + scale.stride if too_long or lowest is not None else 0
        if scale.current is None or not scale.held or scale.held % scale.part:
            return None
        current = scale.current.value
        if scale.held * current < self._settings.confirm_s:
            return None
        if lowest is None:
            return Trigger("expected", expected, current, f"iterations take {current:.3g} s, expected {expected:.3g} s")
        rise = f"mean of the last {scale.size} iterations is {percent(current / lowest - 1.0)} above the best"
        return Trigger("slow", lowest, current, rise)
