"""A process that is stopped while the others are not needs nobody to be compared with."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Finding
from eroica.pipeline import analyze
from support import BackwardHook, FleetPlan, SlowCompute, Trouble, synthesize, synthesize_window

seeds = pytest.mark.parametrize("seed", range(3))


def pipeline(*troubles: Trouble, seed: int) -> list[WorkerPattern]:
    """Two stages of one worker each."""
    return synthesize(FleetPlan(workers=2, stages=2, seed=seed), troubles)


def causes(patterns: list[WorkerPattern]) -> list[Finding]:
    verdict = analyze("job", synthesize_window(patterns), patterns)
    return [one for one in verdict.findings if one.role == "cause"]


@seeds
def test_a_job_that_is_stopped_as_a_whole_accuses_nobody(seed: int) -> None:
    paused = [
        msgspec.structs.replace(one, host_facts={**one.host_facts, "stopped": 0.5}) for one in pipeline(seed=seed)
    ]
    assert not causes(paused)


@seeds
@pytest.mark.parametrize(("stopped", "cause"), [(0.45, "compute-slow"), (0.05, "python-on-critical-path")])
def test_a_process_that_mostly_sleeps_is_late_because_it_is_stopped_not_for_where_it_sleeps(
    stopped: float, cause: str, seed: int
) -> None:
    patterns = synthesize(FleetPlan(workers=4, seed=seed), [BackwardHook((2,), 50)])
    held = {**patterns[2].host_facts, "stopped": stopped}
    patterns[2] = msgspec.structs.replace(patterns[2], host_facts=held)
    verdict = analyze("job", synthesize_window(patterns), patterns)
    assert verdict.cause is not None and (verdict.cause.cause, verdict.cause.workers) == (cause, (2,))
    assert ("is stopped 45 % of the time" in verdict.summary) == (stopped > 0.4)
    assert not [line for one in verdict.findings for line in one.evidence if "no function" in line]


@seeds
def test_a_stage_all_of_whose_workers_stand_still_is_slow_though_it_has_no_healthy_peers(seed: int) -> None:
    patterns = synthesize(FleetPlan(workers=4, stages=2, seed=seed), [SlowCompute((0, 2), 4.0, "stopped")])
    assert [(one.cause, one.workers) for one in causes(patterns)] == [("compute-slow", (0, 2))]
