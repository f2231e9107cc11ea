"""What the training does more of by its own plan is no fault, if it explains the longer iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest

from eroica.model.pattern import Workload
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import (
    BackwardHook,
    FleetPlan,
    LargerBatches,
    SlowLoader,
    SlowPython,
    Trouble,
    synthesize,
    synthesize_window,
)
from support.fleet import Draft

BEFORE = Workload(parameters=210_132, gradients=4, passes=1, batches=1, samples=32, elements=128, sent=210_132)


@dataclass(frozen=True)
class LongerBackward:
    """Backward takes `factor` times as long on all workers, as when layers below the head are trained, too."""

    factor: float = 3.0

    def apply(self, draft: Draft) -> None:
        """Longer where gradients are computed."""
        for key in draft.time_us:
            if key.kind == "compute" and key.phase == "backward":
                draft.time_us[key] *= self.factor


def judged(
    troubles: Sequence[Trouble],
    now: Workload,
    before: Workload = BEFORE,
    seed: int = 0,
    usual: Sequence[Trouble] = (),
) -> Verdict:
    healthy = synthesize(FleetPlan(draw=1, seed=seed), usual, 1)
    patterns = synthesize(FleetPlan(seed=seed), troubles, 2)
    healthy = [msgspec.structs.replace(one, workload=before) for one in healthy]
    patterns = [msgspec.structs.replace(one, workload=now) for one in patterns]
    window = msgspec.structs.replace(synthesize_window(patterns, "slow", healthy), since=1480)
    return analyze("job", window, patterns, healthy)


def grown(**fields: float) -> Workload:
    return msgspec.structs.replace(BEFORE, **fields)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("trouble", "now", "said"),
    [
        (LongerBackward(), grown(parameters=1_877_140, gradients=22), "1.88 million parameters get gradients instead"),
        (LargerBatches(2.0), grown(samples=64), "a batch holds 64 samples instead of 32"),
        (LargerBatches(2.0), grown(passes=2, batches=2), "an iteration runs 2 backward passes instead of 1"),
        (LargerBatches(3.5), grown(elements=256), "a sample holds 256 elements instead of 128"),
    ],
    ids=["thawed", "batch size", "micro-batches", "longer samples"],
)
def test_a_planned_change_is_told_with_its_iteration_and_its_amount(
    trouble: Trouble, now: Workload, said: str, seed: int
) -> None:
    verdict = judged([trouble], now, seed=seed)
    assert (verdict.verdict, [one.cause for one in verdict.findings]) == ("healthy", ["planned-change"]), verdict
    assert said in verdict.summary and "Since about iteration 1,480" in verdict.summary, verdict.summary
    assert "no fault" in verdict.summary and "Removing" not in verdict.summary


@pytest.mark.parametrize(
    ("trouble", "now", "before"),
    [
        (LongerBackward(), BEFORE, BEFORE),
        (LongerBackward(), grown(samples=36), BEFORE),
        (LongerBackward(), grown(parameters=1_877_140), Workload()),
        (LargerBatches(3.0), grown(parameters=240_000), BEFORE),
        (LongerBackward(), grown(parameters=1_877_140, gradients=22, passes=4 / 22), BEFORE),
    ],
    ids=["nothing has grown", "far too little", "not told before", "forward knows no gradients", "steps in turn"],
)
def test_what_does_not_explain_the_time_is_no_planned_change(trouble: Trouble, now: Workload, before: Workload) -> None:
    verdict = judged([trouble], now, before)
    assert verdict.verdict != "healthy" and not [one for one in verdict.findings if one.cause == "planned-change"]


def test_a_fault_beside_a_planned_change_leads() -> None:
    verdict = judged([LargerBatches(1.5), SlowLoader((2,), 40.0)], grown(samples=48))
    assert verdict.verdict == "slow" and verdict.cause is not None
    assert (verdict.cause.cause, verdict.cause.workers) == ("slow-data-loading", (2,))


def test_a_function_that_autograd_calls_for_new_parameters_is_planned() -> None:
    """It ran for none of them before."""
    everybody = tuple(range(FleetPlan().workers))
    troubles = [LongerBackward(), BackwardHook(everybody, 30.0)]
    verdict = judged(troubles, grown(parameters=1_877_140, gradients=22))
    assert verdict.verdict == "healthy", verdict.summary
    assert judged(troubles, BEFORE).verdict != "healthy"


@pytest.mark.parametrize(
    ("troubles", "told", "is_planned"),
    [
        ([LargerBatches(1.6), SlowPython(48.0)], Workload(), True),
        ([SlowPython(48.0)], Workload(), False),
        ([LargerBatches(1.6), SlowPython(48.0)], BEFORE, False),
        ([LargerBatches(1.2), SlowPython(90.0)], Workload(), False),
    ],
    ids=["operators grow as much", "alone", "a loader tells that batches are as large", "grows by more"],
)
def test_a_function_that_takes_longer_as_operators_do_with_longer_batches(
    troubles: Sequence[Trouble], told: Workload, is_planned: bool
) -> None:
    verdict = judged(troubles, told, told, usual=[SlowPython(30.0)])
    assert any(one.cause == "planned-change" for one in verdict.findings) == is_planned, verdict.summary
