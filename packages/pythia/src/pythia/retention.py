"""Which cached prefixes are worth keeping: values per prefix, from where the running workflows are expected to go.

The value of a prefix is its expected uses per step ahead: the sum over running workflows of expected visits divided by
the expected distance, plus, for a role's shared prefix, the rate of its recent uses (runs that have not begun yet need
it, too). A prefix of value 0 is released first; among equals the least recently used goes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

#: Seconds over which recent uses are averaged.
WINDOW_S = 60.0
#: Runs, and prefixes with a rate, that are remembered.
MOST = 20_000


class Retention:
    """Values of cached prefixes."""

    def __init__(self) -> None:
        self._wanted: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._sums: dict[str, float] = {}
        self._uses: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.step_s = 1.0

    def use(self, group: str, now: float) -> None:
        """Register that a request uses a role's shared prefix."""
        level, then = self._uses.pop(group, (0.0, now))
        self._uses[group] = level * math.exp((then - now) / WINDOW_S) + 1.0, now
        if len(self._uses) > MOST:
            self._uses.popitem(last=False)

    def want(self, run: str, wanted: Mapping[str, float]) -> set[str]:
        """Replace what one run is expected to use; return the prefixes whose value changed."""
        before = self._wanted.pop(run, {})
        for group, value in before.items():
            left = self._sums[group] - value
            if left > 1e-9:
                self._sums[group] = left
            else:
                del self._sums[group]
        for group, value in wanted.items():
            self._sums[group] = self._sums.get(group, 0.0) + value
        if wanted:
            self._wanted[run] = dict(wanted)
        if len(self._wanted) > MOST:
            self.want(next(iter(self._wanted)), {})
        return {g for g in {*before, *wanted} if abs(before.get(g, 0.0) - wanted.get(g, 0.0)) > 1e-6}

    def wanted(self, group: str) -> float:
        """Return what running workflows are expected to use of a prefix per step ahead."""
        return self._sums.get(group, 0.0)

    def value(self, group: str, now: float) -> float:
        """Return the expected uses of a prefix per step ahead."""
        level, then = self._uses.get(group, (0.0, now))
        rate = level * math.exp((then - now) / WINDOW_S) / WINDOW_S
        return self._sums.get(group, 0.0) + rate * self.step_s
