"""Jobs on which a verdict once named the wrong thing, or nothing, by mechanism; each with what must stay as it is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.worker import ProcessGroup
from eroica.pipeline import analyze
from support import FleetPlan, SlowLink, synthesize, synthesize_window
from support.pipelines import Step, patterns_of_played, pipeline_programs, play

ITERATIONS = 12


def causes(verdict: Verdict) -> list[str]:
    return [finding.cause for finding in verdict.findings if finding.role == "cause"]


def on_devices(patterns: Sequence[WorkerPattern]) -> list[WorkerPattern]:
    """The same of a job whose operators run on accelerators."""
    return [msgspec.structs.replace(pattern, has_accelerator=True) for pattern in patterns]


def without_senders(patterns: Sequence[WorkerPattern]) -> list[WorkerPattern]:
    """The same where no send or receive tells its other side, as kernels of several together do not."""
    return [
        msgspec.structs.replace(
            pattern, collectives=tuple(msgspec.structs.replace(one, peers=b"") for one in pattern.collectives)
        )
        for pattern in patterns
    ]


# --- two workers late in different places of an iteration ---


def two_places(late_us: tuple[float, float], transfer_us: float = 2_000.0) -> list[WorkerPattern]:
    """Workers 0 and 1 late before the first and before the second reduction of an iteration."""
    groups = [ProcessGroup(name="0", description="default_pg", ranks=(0, 1, 2, 3), backend="nccl")]
    noise = np.random.default_rng(1)
    programs: list[list[Step]] = []
    for rank in range(4):
        steps: list[Step] = []
        for _ in range(ITERATIONS):
            for place in range(2):
                own = 40_000.0 * float(np.exp(noise.normal(0, 0.01))) + (late_us[place] if rank == place else 0.0)
                steps += [Step("work", own), Step("all_reduce", transfer_us, "0")]
            steps += [Step("work", 100.0), Step("iteration")]
        programs.append(steps)
    return on_devices(patterns_of_played(play(programs, groups), groups))


def judge(now: list[WorkerPattern], before: list[WorkerPattern]) -> Verdict:
    return analyze("job", synthesize_window(now, "slow", before), now, before)


def test_waiting_for_one_worker_after_another_is_no_slow_transfer() -> None:
    verdict = judge(two_places((20_000.0, 20_000.0)), two_places((0.0, 0.0)))
    assert "slow-collective-everywhere" not in causes(verdict)
    assert verdict.verdict == "slow"


def test_a_slow_transfer_between_them_is_still_seen() -> None:
    verdict = judge(two_places((0.0, 0.0), 20_000.0), two_places((0.0, 0.0)))
    assert causes(verdict) == ["slow-collective-everywhere"]


# --- pipelines whose receives name no sender ---


def pipeline(late_us: float = 0.0) -> list[WorkerPattern]:
    """Four stages twice, few microbatches, and the last stage of the second replica late by as much in each of them."""
    work = [[10_000.0] * 4, [10_000.0, 10_000.0, 10_000.0, 10_000.0 + late_us]]
    programs, groups = pipeline_programs(work, ITERATIONS)
    return on_devices(patterns_of_played(play(programs, groups), groups))


@pytest.mark.parametrize("purpose", ["slow", "manual", "baseline"])
def test_the_bubble_of_a_pipeline_is_no_slow_transfer(purpose: str) -> None:
    patterns = without_senders(pipeline())
    verdict = analyze("job", synthesize_window(patterns, purpose), patterns)  # type: ignore[arg-type]
    assert verdict.findings == ()


# --- far slower than the healthy window, and nobody knows why ---


def far_from_healthy(ms: float) -> Verdict:
    plan = FleetPlan()
    patterns, before = synthesize(plan, [SlowLink(ms)], 2), synthesize(plan)
    return analyze("job", synthesize_window(patterns, "manual", before), patterns, before)


def test_a_window_far_slower_than_the_healthy_one_is_not_called_healthy() -> None:
    verdict = far_from_healthy(40.0)
    assert verdict.cause is not None and verdict.cause.cause == "slow-collective-everywhere", verdict.summary
    assert far_from_healthy(0.0).verdict == "healthy"
