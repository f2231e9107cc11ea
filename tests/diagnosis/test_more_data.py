"""More data on a worker is uneven work, not a slow processor: its optimizer tells them apart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, LargerBatches, SlowCompute, Trouble, synthesize, synthesize_window
from support.fleet import accused


def judged(*troubles: Trouble, before: Sequence[Trouble] = (), **plan: object) -> Verdict:
    healthy = synthesize(FleetPlan(**{**plan, "draw": 1}), before, 1)
    patterns = synthesize(FleetPlan(**plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, "slow", healthy), patterns, healthy)


@pytest.mark.parametrize("seed", range(6))
def test_larger_batches_on_one_worker_are_uneven_work(seed: int) -> None:
    verdict = judged(LargerBatches(2.5, (2,)), seed=seed)
    assert accused(verdict) == [("load-imbalance", (2,))]
    assert verdict.cause is not None
    assert any("tensors are larger" in sentence for sentence in verdict.cause.evidence)


@pytest.mark.parametrize("seed", range(6))
def test_a_slow_processor_slows_the_optimizer_too(seed: int) -> None:
    assert accused(judged(SlowCompute((2,), 2.5), seed=seed)) == [("compute-slow", (2,))]


def test_on_an_accelerator_nothing_is_said_without_the_devices_own_speed() -> None:
    verdict = judged(LargerBatches(2.5, (2,)), seed=1, accelerator=True)
    assert [workers for _, workers in accused(verdict)] == [(2,)]
