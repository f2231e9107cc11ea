"""What the job's own growth says of a gain, and where it says nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import BackwardHook, FleetPlan, SlowCompute, SlowPython, Trouble, synthesize, synthesize_window

seeds = pytest.mark.parametrize("seed", range(3))


def verdict_on(troubles: Sequence[Trouble], seed: int, purpose: str = "slow") -> Verdict:
    before = synthesize(FleetPlan(workers=4, seed=seed + 100), (), 1)
    patterns = synthesize(FleetPlan(workers=4, seed=seed), troubles, 2)
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before)  # type: ignore[arg-type]


def growth(verdict: Verdict) -> float:
    assert verdict.iteration.baseline_ms and verdict.iteration.current_ms
    return 1 - verdict.iteration.baseline_ms / verdict.iteration.current_ms


@seeds
@pytest.mark.parametrize("trouble", [SlowPython(60.0), BackwardHook((2,), 60.0)])
def test_a_cause_that_accounts_for_the_slowdown_gains_what_it_took(trouble: Trouble, seed: int) -> None:
    verdict = verdict_on([trouble], seed)
    found = verdict.cause
    assert found is not None and found.gain is not None
    assert found.gain >= 0.9 * growth(verdict)
    assert found.gain <= max(growth(verdict), 0.6)


@seeds
def test_a_cause_that_is_a_small_part_of_the_slowdown_keeps_its_own_gain(seed: int) -> None:
    verdict = verdict_on([SlowPython(8.0), SlowCompute((0, 1, 2, 3), 1.28, fact="nothing_of_note")], seed)
    python = [one for one in verdict.findings if one.cause == "python-on-critical-path" and one.role == "cause"]
    assert all((one.gain or 0.0) < 0.7 * growth(verdict) for one in python)
    assert growth(verdict) > 0.2


@seeds
def test_two_workers_with_troubles_of_their_own_under_one_frame_are_two_causes(seed: int) -> None:
    hooks = [BackwardHook((1,), 40.0), BackwardHook((2,), 40.0, "round_grad (project/rounding.py:12)")]
    verdict = verdict_on(hooks, seed)
    told = {(one.function.name, one.workers) for one in verdict.findings if one.role == "cause"}
    assert told == {("scale_grad", (1,)), ("round_grad", (2,))}
