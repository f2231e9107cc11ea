"""Noticing that a workflow no longer behaves as its profile says, and whether its predictions deserve trust."""

from __future__ import annotations

import math

import msgspec

#: Sum of log-likelihood ratios from which a change counts as noticed. Four to ten odd runs suffice.
#: Without a change a false alarm comes at most about once in e^7 ≈ 1,100 runs.
ALARM = 7.0


def cautious(share: float, runs: int) -> float:
    """Return the rate at which an event must be expected whose limit was estimated as a quantile from so many runs."""
    return share + 2 * math.sqrt(share * (1 - share) / max(runs, 1))


class Cusum(msgspec.Struct):
    """A one-sided CUSUM over yes/no events.

    Attributes:
        level: Present sum; never below 0.
    """

    level: float = 0.0

    def add(self, event: bool, usual: float, changed: float) -> bool:
        """Add one observation; return whether the alarm is reached.

        Args:
            event: Whether the run was odd.
            usual: Rate of odd runs while nothing has changed.
            changed: Rate that should be noticed.
        """
        ratio = changed / usual if event else (1 - changed) / (1 - usual)
        self.level = max(0.0, self.level + math.log(ratio))
        return self.level >= ALARM


class Drift(msgspec.Struct):
    """Watches runs of one workflow type for a change.

    Attributes:
        path: Runs that the learned expression does not accept.
        unlikely: Runs whose path is less likely than 95 % of the learned ones.
        long: Runs with more output tokens than 90 % of the learned ones.
        short: Runs with fewer output tokens than 90 % of the learned ones.
    """

    path: Cusum = msgspec.field(default_factory=Cusum)
    unlikely: Cusum = msgspec.field(default_factory=Cusum)
    long: Cusum = msgspec.field(default_factory=Cusum)
    short: Cusum = msgspec.field(default_factory=Cusum)

    def add(self, *, off: bool, unlikely: bool, long: bool, short: bool, runs: int) -> str:
        """Add one finished run; return what has changed, or an empty text."""
        alarms = {
            "paths left the expression": self.path.add(off, cautious(0.05, runs), 0.6),
            "paths became unlikely": self.unlikely.add(unlikely, cautious(0.08, runs), 0.6),
            "runs became longer": self.long.add(long, cautious(0.1, runs), 0.6),
            "runs became shorter": self.short.add(short, cautious(0.1, runs), 0.6),
        }
        return ", ".join(what for what, alarm in alarms.items() if alarm)


class Trust(msgspec.Struct):
    """How right recent predictions were: exponentially weighted means over about 40 steps.

    Attributes:
        hits: Share of steps whose role was the likeliest.
        hoped: Share that the profile itself expected to hit.
        error: Mean |log(predicted / actual)| of the remaining tokens.
        bias: Mean log(predicted / actual).
        steps: Steps counted so far.
    """

    hits: float = 0.0
    hoped: float = 0.0
    error: float = 0.0
    bias: float = 0.0
    steps: int = 0

    def add(self, hit: bool, hoped: float, predicted: float, actual: float) -> None:
        """Compare one prediction with what happened."""
        self.steps += 1
        rate = max(1 / 40, 1 / self.steps)
        ratio = math.log((predicted + 1) / (actual + 1))
        self.hits += rate * (hit - self.hits)
        self.hoped += rate * (hoped - self.hoped)
        self.error += rate * (abs(ratio) - self.error)
        self.bias += rate * (ratio - self.bias)

    @property
    def earned(self) -> bool:
        """Whether predictions may decide the order of requests.

        The profile must hit at least 80 % as often as it expects itself, predict remaining work within a factor of
        e ≈ 2.7 on average, and not be off by a factor of 2 in one direction.
        """
        return self.steps >= 10 and self.hits >= 0.8 * self.hoped and self.error <= 1.0 and abs(self.bias) <= 0.7
