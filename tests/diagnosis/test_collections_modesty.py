"""Healthy fleets collect now and then; in a few iterations that may cost much by chance, and is no cause."""

from __future__ import annotations

import pytest

from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, GarbagePauses, Trouble, synthesize, synthesize_window

#: The first few, and those whose healthy collections cost most.
SEEDS = (*range(4), 7, 19, 33)


def judge(*troubles: Trouble, baseline: bool = True, **plan: object) -> Verdict:
    before = synthesize(FleetPlan(**plan), (), 1) if baseline else []
    patterns = synthesize(FleetPlan(draw=1, **plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, "slow", before), patterns, before)


def causes(verdict: Verdict) -> list[str]:
    return [one.cause for one in verdict.findings if one.role == "cause"]


@pytest.mark.parametrize("workers", [4, 8])
@pytest.mark.parametrize("iterations", [2, 5, 10, 20])
@pytest.mark.parametrize("baseline", [True, False])
def test_healthy_collections_in_a_short_window_are_no_cause(workers: int, iterations: int, baseline: bool) -> None:
    for seed in SEEDS:
        verdict = judge(baseline=baseline, workers=workers, iterations=iterations, seed=seed)
        assert causes(verdict) == [], (seed, verdict.summary)


@pytest.mark.parametrize(("workers", "iterations"), [(4, 20), (8, 10)])
@pytest.mark.parametrize("baseline", [True, False])
def test_pauses_that_come_again_and_again_are_still_found(workers: int, iterations: int, baseline: bool) -> None:
    for seed in range(3):
        plan = {"workers": workers, "iterations": iterations, "seed": seed}
        verdict = judge(GarbagePauses(40), baseline=baseline, **plan)
        assert causes(verdict)[:1] == ["garbage-collection"], (seed, verdict.summary)
