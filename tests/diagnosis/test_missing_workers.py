"""Workers that did not report and may be what all wait for, and slowdowns of which causes explain little."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import BackwardHook, FleetPlan, SlowHostLink, SlowLink, SlowLoader, Trouble, synthesize, synthesize_window

seeds = pytest.mark.parametrize("seed", range(3))
kinds = pytest.mark.parametrize("accelerator", [True, False], ids=["devices", "cores"])


def without_worker_7(
    seed: int, accelerator: bool, troubles: list[Trouble], purpose: WindowPurpose = "slow", *, never: bool = False
) -> Verdict:
    """Verdict on a window without the last of eight workers; if `never`, it had not reported when healthy either."""
    plan = FleetPlan(workers=8, accelerator=accelerator, seed=seed)
    before = synthesize(replace(plan, draw=1), (), 1)
    now = synthesize(plan, troubles, 2)
    window = synthesize_window(now, purpose, before)
    return analyze("job", window, now[:7], before[:7] if never else before, expected_workers=8)


# --- who is waited for did not report ---


@seeds
@kinds
def test_a_smaller_cause_is_not_accused_of_what_somebody_missing_may_cost(accelerator: bool, seed: int) -> None:
    verdict = without_worker_7(seed, accelerator, [SlowLoader((7,), 40), SlowLoader((5,), 8)])
    assert verdict.verdict == "undetermined"
    assert "worker 7 did not report" in verdict.summary
    assert "longer than in the healthy window" in verdict.summary


@seeds
@kinds
def test_a_cause_that_costs_more_than_somebody_missing_can_stays_one(accelerator: bool, seed: int) -> None:
    verdict = without_worker_7(seed, accelerator, [SlowLoader((7,), 8), SlowLoader((5,), 40)])
    assert verdict.verdict == "slow"
    assert verdict.findings[0].workers == (5,)


@seeds
def test_what_all_wait_for_somebody_missing_stands_beside_a_cause(seed: int) -> None:
    verdict = without_worker_7(seed, True, [SlowLoader((7,), 40), SlowLoader((5,), 26)])
    assert verdict.verdict == "slow"
    assert any(note.endswith("which may be for worker 7: not reported.") for note in verdict.coverage.notes)


@seeds
@kinds
@pytest.mark.parametrize("slower", [0, 14])
def test_a_window_by_hand_is_healthy_only_where_nobody_waits_longer(slower: int, accelerator: bool, seed: int) -> None:
    verdict = without_worker_7(seed, accelerator, [SlowLoader((7,), slower)] if slower else [], "manual")
    assert verdict.verdict == ("undetermined" if slower else "healthy")


@seeds
def test_a_slow_link_is_not_hidden_by_what_all_wait_for_it(seed: int) -> None:
    plan = FleetPlan(workers=8, per_host=2, seed=seed, iterations=60)
    before, now = synthesize(replace(plan, draw=1), (), 1), synthesize(plan, [SlowHostLink((1,), 30)], 2)
    verdict = analyze("job", synthesize_window(now, "slow", before), now[:7], before, expected_workers=8)
    assert [one.cause for one in verdict.findings if one.role == "cause"][:1] == ["slow-link"], verdict.summary
    assert verdict.verdict == "slow"


# --- causes that explain little of a slowdown ---


def without_past(seed: int, scale: float, workers: int = 8, longer_ms: float = 8) -> Verdict:
    """A job whose healthy stretch nobody captured: one worker loads 8 ms longer, and all take `scale` times as long."""
    plan = FleetPlan(workers=workers, accelerator=True, seed=seed)
    before = synthesize(replace(plan, draw=1), (), 1)
    now = synthesize(replace(plan, scale=scale), [SlowLoader((min(5, workers - 1),), longer_ms)], 2)
    return analyze("job", synthesize_window(now, "slow", before), now, (), expected_workers=workers)


@seeds
def test_how_little_of_a_slowdown_a_cause_explains_is_said(seed: int) -> None:
    verdict = without_past(seed, 1.8)
    assert verdict.findings[0].workers == (5,)
    assert "That explains " in verdict.summary


# --- healthy jobs have no cause, and few samples or workers carry no claim ---


SEEDS = 300


def causes_found(
    purpose: str, baseline: bool, allowed: tuple[str, ...] = ("healthy",), **plan: object
) -> list[tuple[int, str]]:
    """Seeds and sentences of verdicts with a finding, or with another word than allowed."""
    found = []
    for seed in range(SEEDS):
        before = synthesize(FleetPlan(seed=seed + 10_000, **plan), (), 1) if baseline else []
        patterns = synthesize(FleetPlan(seed=seed, **plan), (), 2)
        verdict = analyze("job", synthesize_window(patterns, purpose, before), patterns, before)
        if verdict.findings or verdict.verdict not in allowed:
            found.append((seed, verdict.summary))
    return found


@pytest.mark.parametrize("baseline", [True, False])
def test_hundreds_of_healthy_jobs_on_busy_cores_have_no_cause(baseline: bool) -> None:
    assert causes_found("manual", baseline, iterations=25) == []


def test_a_false_alarm_of_the_trigger_finds_no_cause_either() -> None:
    """The window states a slowdown that is only the difference of two healthy means, now and then above 5 %."""
    assert causes_found("slow", True, ("healthy", "undetermined"), iterations=25) == []


def test_communication_that_got_slower_is_no_cause_in_a_window_nobody_was_alarmed_for() -> None:
    before = synthesize(FleetPlan(seed=1), (), 1)
    patterns = synthesize(FleetPlan(seed=2), [SlowLink(15)], 2)
    verdict = analyze("job", synthesize_window(patterns, "manual", before), patterns, before)
    assert verdict.verdict == "healthy"


def judge(patterns: list[WorkerPattern]) -> Verdict:
    return analyze("job", synthesize_window(patterns), patterns)


@pytest.mark.parametrize(("samples", "is_told"), [(1, False), (400, True)])
def test_a_resource_that_was_sampled_too_seldom_carries_no_claim(samples: int, is_told: bool) -> None:
    patterns = [
        msgspec.structs.replace(
            one,
            functions=tuple(msgspec.structs.replace(row, resource_samples=min(samples, 400)) for row in one.functions),
        )
        for one in synthesize(FleetPlan(workers=4), [BackwardHook((1,), 60)])
    ]
    verdict = judge(patterns)
    assert verdict.cause is not None
    assert (verdict.cause.resource is not None) == is_told
    assert ("It keeps a core busy" in verdict.summary) == is_told


def test_one_of_four_that_waits_for_the_others_says_so_and_how_they_become_workers() -> None:
    """As the learner of reinforcement learning, whose actors step no optimizer."""
    patterns = synthesize(FleetPlan(workers=4), [BackwardHook((2,), 400)])[:1]
    verdict = analyze("job", synthesize_window(patterns), patterns, expected_workers=4)
    assert verdict.verdict == "undetermined"
    assert "only 1 of 4 workers reported, and it waits" in verdict.summary
    assert "call eroica.step() once per iteration on all of them" in verdict.summary
