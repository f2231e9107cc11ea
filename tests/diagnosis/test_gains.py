"""What the job's own growth says of a gain, and where it says nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from eroica.diagnosis.arbiter import Cause
from eroica.diagnosis.context import WindowContext
from eroica.diagnosis.gains import settle_gains
from eroica.diagnosis.selection import find_causes
from eroica.diagnosis.view import View
from eroica.localize import localize
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from eroica.settings import Settings
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
@pytest.mark.parametrize(("best", "settled"), [(0.85, True), (0.55, False)])
def test_a_cause_of_a_window_that_grew_little_does_not_gain_all_that_the_job_lost_outside(
    best: float, settled: bool, seed: int
) -> None:
    """Inside windows the job grew by a tenth: what costs most of that is a small part of twice as long iterations."""
    before = synthesize(FleetPlan(workers=4, seed=seed + 100), (), 1)
    patterns = synthesize(FleetPlan(workers=4, seed=seed), [SlowPython(12.0)], 2)
    window = synthesize_window(patterns, "slow", before)
    assert window.current_iteration_s
    window = msgspec.structs.replace(window, baseline_iteration_s=best * window.current_iteration_s)
    view = View(
        localize(patterns, before, Settings()), WindowContext(job="job", window=window, expected_workers=4), Settings()
    )
    growth = 1 - view.baseline_us / view.iteration_us
    found = find_causes(view)[0].candidate
    part = msgspec.structs.replace(found, mean_us=found.reference_us + 0.7 * growth * view.iteration_us)
    (cause,) = settle_gains(view, [Cause(candidate=part, gain=0.7 * growth)])
    assert cause.is_growth == settled
    assert cause.gain == pytest.approx(1 - best if settled else 0.7 * growth, abs=0.03)


@seeds
def test_nobody_finds_the_job_slow_so_its_growth_says_nothing(seed: int) -> None:
    found = verdict_on([BackwardHook((2,), 20.0)], seed, purpose="manual").cause
    assert found is not None
    assert any("Recomputed without it" in text for text in found.evidence)


@seeds
@pytest.mark.parametrize(("cause", "settled"), [("sibling-process", True), ("python-on-critical-path", False)])
def test_who_lacks_cores_loses_more_than_busy_times_show(cause: str, settled: bool, seed: int) -> None:
    before = synthesize(FleetPlan(workers=4, seed=seed + 100), (), 1)
    patterns = synthesize(FleetPlan(workers=4, seed=seed), [SlowCompute((0, 1, 2, 3), 2.2)], 2)
    context = WindowContext(job="job", window=synthesize_window(patterns, "slow", before), expected_workers=4)
    view = View(localize(patterns, before, Settings()), context, Settings())
    growth = 1 - view.baseline_us / view.iteration_us
    found = find_causes(view)[0].candidate
    small = msgspec.structs.replace(found, cause=cause, mean_us=found.reference_us * 1.05)
    (settled_one,) = settle_gains(view, [Cause(candidate=small, gain=0.45 * growth)])
    assert settled_one.is_growth == settled
    (tiny,) = settle_gains(view, [Cause(candidate=small, gain=0.2 * growth)])
    assert not tiny.is_growth


@seeds
@pytest.mark.parametrize(("fact", "settled"), [("stopped", True), ("nothing_of_note", False)])
def test_a_process_that_is_stopped_loses_more_than_its_own_functions_show(fact: str, settled: bool, seed: int) -> None:
    before = synthesize(FleetPlan(workers=4, seed=seed + 100), (), 1)
    patterns = synthesize(FleetPlan(workers=4, seed=seed), [SlowCompute((2,), 2.2, fact=fact)], 2)
    context = WindowContext(job="job", window=synthesize_window(patterns, "slow", before), expected_workers=4)
    view = View(localize(patterns, before, Settings()), context, Settings())
    (cause,) = find_causes(view)
    small = msgspec.structs.replace(cause.candidate, mean_us=cause.candidate.reference_us * 1.1)
    (found,) = settle_gains(view, [Cause(candidate=small, gain=0.1)])
    assert found.is_growth == settled
    assert found.gain == pytest.approx(1 - view.baseline_us / view.iteration_us if settled else 0.1, abs=0.02)


@seeds
@pytest.mark.parametrize(("own", "general", "left"), [(0.95, 0.5, 0.0), (0.8, 0.5, 0.2), (0.7, 0.15, 0.15)])
def test_longer_collectives_gain_no_more_than_a_cause_leaves_of_the_growth(
    own: float, general: float, left: float, seed: int
) -> None:
    """They may be longer because of it: shares of the growth."""
    before = synthesize(FleetPlan(workers=4, seed=seed + 100), (), 1)
    patterns = synthesize(FleetPlan(workers=4, seed=seed), [SlowPython(60.0)], 2)
    context = WindowContext(job="job", window=synthesize_window(patterns, "slow", before), expected_workers=4)
    view = View(localize(patterns, before, Settings()), context, Settings())
    growth = 1 - view.baseline_us / view.iteration_us
    found = find_causes(view)[0].candidate
    found = msgspec.structs.replace(found, mean_us=found.reference_us + own * growth * view.iteration_us)
    longer = msgspec.structs.replace(found, cause="slow-collective-everywhere", kind="collective", is_general=True)
    causes = [Cause(candidate=found, gain=0.6 * growth), Cause(candidate=longer, gain=general * growth)]
    settled = settle_gains(view, causes)
    assert [one.candidate.cause for one in settled] == [found.cause] + ([longer.cause] if left else [])
    assert settled[0].gain == pytest.approx((1 - left) * growth, rel=0.1)
    assert not left or settled[1].gain == pytest.approx(left * growth, rel=0.1)
