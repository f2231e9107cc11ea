"""Workers that did not report and may be what all wait for, and slowdowns of which causes explain little."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eroica.model.verdict import Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import FleetPlan, SlowHostLink, SlowLoader, Trouble, synthesize, synthesize_window

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
    assert "longer than when the job was healthy" in verdict.summary


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
