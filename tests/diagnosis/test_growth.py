"""Batches or sequences that grow on everybody make iterations longer: nobody is accused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, LargerBatches, SlowCompute, Trouble, synthesize, synthesize_window
from support.fleet import Draft

seeds = pytest.mark.parametrize("seed", range(3))


@dataclass(frozen=True)
class LowerClock(LargerBatches):
    """The same, because devices run at a lower clock, which spares the optimizer: memory bounds it."""

    def apply(self, draft: Draft) -> None:
        """Longer, and less use of the device."""
        super().apply(draft)
        for key in draft.utilization:
            if key.thread == "device":
                draft.utilization[key] = draft.utilization[key] / self.factor


def verdict_on(trouble: Trouble, seed: int, accelerator: bool = False) -> Verdict:
    before = synthesize(FleetPlan(workers=4, seed=seed + 100, accelerator=accelerator), (), 1)
    patterns = synthesize(FleetPlan(workers=4, seed=seed, accelerator=accelerator), [trouble], 2)
    return analyze("job", synthesize_window(patterns, "slow", before), patterns, before)


@seeds
def test_operators_that_are_slower_in_the_optimizer_too_are_one(seed: int) -> None:
    found = verdict_on(SlowCompute((0, 1, 2, 3), 3.0), seed).cause
    assert found is not None and found.cause == "compute-slow"


@seeds
def test_devices_at_a_lower_clock_are_slow_though_memory_is_not(seed: int) -> None:
    found = verdict_on(LowerClock(1.5), seed, accelerator=True).cause
    assert found is not None and found.cause == "compute-slow"
