"""Healthy jobs have no cause, and few samples or workers carry no claim."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import BackwardHook, FleetPlan, SlowLink, synthesize, synthesize_window

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
