"""Culprits that change from iteration to iteration: found without blaming anybody; healthy jitter stays silent."""

from __future__ import annotations

import pytest

from eroica.model.verdict import Finding, Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import FleetPlan, Trouble, synthesize, synthesize_window
from support.scope_troubles import WanderingPause


def judge(
    *troubles: Trouble, seed: int = 0, purpose: WindowPurpose = "slow", baseline: bool = True, **plan: object
) -> Verdict:
    before = synthesize(FleetPlan(seed=seed, **plan), (), 1) if baseline else []
    patterns = synthesize(FleetPlan(seed=seed, draw=1, **plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before)


def only_cause(verdict: Verdict) -> Finding:
    (found,) = [finding for finding in verdict.findings if finding.role == "cause"]
    assert (found.scope, found.workers) == ("rotating", ()), verdict.summary
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workers", [3, 4])
def test_what_somebody_does_in_each_iteration_is_told_once_and_as_wandering(workers: int, seed: int) -> None:
    """On average all do it, longer than when the job was healthy; who waits for whom tells more."""
    pause = WanderingPause(60, chance=1.0, frame="shuffle (project/mix.py:5)")
    found = only_cause(judge(pause, seed=seed, workers=workers))
    assert found.function is not None and found.function.name == "shuffle"
    assert found.gain == pytest.approx(0.47, abs=0.05)


@pytest.mark.parametrize(("workers", "count"), [(2, 20), (4, 20), (8, 20), (64, 4)])
@pytest.mark.parametrize("accelerator", [False, True])
def test_healthy_jitter_is_nobodys_turn(workers: int, count: int, accelerator: bool) -> None:
    found = []
    for seed in range(count):
        for baseline in (True, False):
            verdict = judge(
                seed=seed, purpose="manual", baseline=baseline, workers=workers, accelerator=accelerator, iterations=20
            )
            found += [(seed, verdict.summary) for one in verdict.findings if one.role == "cause"]
    assert found == []


@pytest.mark.parametrize("seed", range(3))
def test_of_many_devices_a_few_iterations_are_enough_not_to_call_wandering_pauses_healthy(seed: int) -> None:
    plan = {"workers": 256, "accelerator": True, "iterations": 4, "seed": seed, "baseline": False}
    verdict = judge(WanderingPause(60, frame="shuffle (project/mix.py:5)"), purpose="manual", **plan)  # type: ignore[arg-type]
    assert verdict.verdict != "healthy"
    assert "shuffle" in verdict.summary
    calm = judge(purpose="manual", **plan)  # type: ignore[arg-type]
    assert calm.verdict == "healthy", calm.summary
