"""Confidence depends on what a window can tell, and windows that tell too little accuse nobody."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import BackwardHook, FleetPlan, synthesize, synthesize_window


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
