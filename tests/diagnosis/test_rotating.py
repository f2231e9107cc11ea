"""Culprits that change from iteration to iteration: found without blaming anybody; healthy jitter stays silent."""

from __future__ import annotations

import pytest

from eroica.model.verdict import Finding, Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import BackwardHook, FleetPlan, Trouble, synthesize, synthesize_window
from support.code_troubles import Calls
from support.scope_troubles import VariableLengths, WanderingHold, WanderingPause


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


fleets = pytest.mark.parametrize(("workers", "accelerator"), [(4, False), (8, True), (32, False)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workers", [3, 4])
def test_what_somebody_does_in_each_iteration_is_told_once_and_as_wandering(workers: int, seed: int) -> None:
    """On average all do it, longer than when the job was healthy; who waits for whom tells more."""
    pause = WanderingPause(60, chance=1.0, frame="shuffle (project/mix.py:5)")
    found = only_cause(judge(pause, seed=seed, workers=workers))
    assert found.function is not None and found.function.name == "shuffle"
    assert found.gain == pytest.approx(0.47, abs=0.05)


def test_hold_ups_while_run_queues_are_as_before_are_no_contention() -> None:
    assert only_cause(judge(WanderingHold(1.8), workers=8)).cause == "compute-slow"


@pytest.mark.parametrize("seed", range(3))
def test_what_all_workers_wait_for_at_once_is_no_part_of_what_they_lose_in_turns(seed: int) -> None:
    report = Calls(("train (project/train.py:9)", "report (project/train.py:60)"), (0, 1), 400, every=2, use=0.02)
    verdict = judge(WanderingHold(1.8), report, seed=seed, baseline=False, workers=2)
    turns = [one.gain or 0.0 for one in verdict.findings if one.scope == "rotating"]
    assert all(gain < 0.25 for gain in turns), verdict.summary


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("purpose", ["manual", "slow"])
def test_differences_no_larger_than_what_waiting_for_a_core_makes_are_no_uneven_loads(
    seed: int, purpose: WindowPurpose
) -> None:
    """Threads of these fleets wait for a core 20 to 30 % of the time."""
    verdict = judge(VariableLengths(0.15), seed=seed, purpose=purpose, workers=4, cores=8)
    assert [one.cause for one in verdict.findings if one.role == "cause"] == [], verdict.summary


def test_loads_that_were_as_uneven_when_the_job_was_healthy_are_not_what_made_it_slow() -> None:
    plan = {"workers": 8, "accelerator": True}
    before = synthesize(FleetPlan(seed=1, **plan), [VariableLengths(0.2)], 1)
    patterns = synthesize(FleetPlan(seed=1, draw=1, **plan), [VariableLengths(0.2), BackwardHook((3,), 60)], 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert [(one.cause, one.workers) for one in verdict.findings if one.role == "cause"] == [
        ("python-on-critical-path", (3,))
    ]


def test_one_worker_that_is_late_now_and_then_is_not_everybody_in_turn() -> None:
    """Bursts on one worker: whoever is last does not change."""

    class Bursts(WanderingHold):
        def apply(self, draft: object) -> None:
            hit = draft.noise.random(draft.shape[1]) < 0.6
            for key in draft.time_us:
                draft.time_us[key][2, hit] *= 1.8

    verdict = judge(Bursts(1.8), workers=4)
    assert all(one.scope != "rotating" for one in verdict.findings)


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


def test_workers_that_take_turns_on_too_few_cores_are_healthy_without_a_past() -> None:
    verdict = judge(WanderingHold(1.8), purpose="manual", baseline=False, workers=4, cores=2)
    assert verdict.findings == ()


def test_a_few_iterations_do_not_show_that_the_culprit_changes() -> None:
    verdict = judge(WanderingHold(1.8, queue=0.1), workers=4, iterations=6)
    assert all(one.scope != "rotating" for one in verdict.findings)


@pytest.mark.parametrize("seed", range(3))
def test_of_many_devices_a_few_iterations_are_enough_not_to_call_wandering_pauses_healthy(seed: int) -> None:
    plan = {"workers": 256, "accelerator": True, "iterations": 4, "seed": seed, "baseline": False}
    verdict = judge(WanderingPause(60, frame="shuffle (project/mix.py:5)"), purpose="manual", **plan)  # type: ignore[arg-type]
    assert verdict.verdict != "healthy"
    assert "shuffle" in verdict.summary
    calm = judge(purpose="manual", **plan)  # type: ignore[arg-type]
    assert calm.verdict == "healthy", calm.summary
