"""What a job lost against its own past is told with its place, also where no kind of cause is known."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from eroica.diagnosis import WindowContext
from eroica.diagnosis.view import View
from eroica.localize import localize
from eroica.model.lost import LEAST, lost, lost_at_end, rank_errors
from eroica.model.verdict import Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, SlowLink, synthesize, synthesize_window

BEFORE = synthesize(FleetPlan(workers=4, seed=1), (), 1)


def varied(mean: float, share: float, count: int, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [mean * (1 + draw.uniform(-share, share)) for _ in range(count)]


def judge(
    purpose: WindowPurpose, *troubles: object, scale: float = 1.0, past: bool = True, **stated: float | None
) -> Verdict:
    patterns = synthesize(FleetPlan(workers=4, seed=1, draw=1, scale=scale), troubles, 2)
    before = BEFORE if past else []
    window = msgspec.structs.replace(synthesize_window(patterns, purpose, before), **stated)
    return analyze("job", window, patterns, before, settings=Settings(expected_iteration_s=0.5))


def test_what_healthy_windows_differ_by_is_noise_and_more_is_not() -> None:
    before = varied(100, 0.1, 40)
    assert not lost(varied(125, 0.1, 40, 1), before, LEAST).is_sure
    assert lost(varied(145, 0.1, 40, 1), before, LEAST).is_sure


def test_a_scatter_that_hides_the_difference_is_noise_unless_the_order_is_sure() -> None:
    rare = [100.0] * 36 + [2500.0, 100.0, 100.0, 100.0]
    assert not lost(rare, varied(100, 0.1, 40), LEAST).is_sure
    assert lost(rare, varied(100, 0.1, 40), LEAST, 0.5).is_sure  # so much longer is longer, whatever the scatter
    assert not lost([*varied(108, 0.03, 24), 1400.0], varied(100, 0.03, 40), LEAST).is_sure  # one evaluation
    often = [100.0, 600.0, 130.0, 900.0] * 5
    assert lost(often, [99.0] * 20, LEAST).is_sure


def test_what_causes_leave_of_the_loss_is_the_rest_and_nothing_where_it_is_noise() -> None:
    loss = lost([160.0] * 20, [100.0] * 20, LEAST)
    assert loss.rest(0.0) == pytest.approx(60) and loss.rest(25.0) == pytest.approx(35) and loss.rest(40.0) == 0.0


def test_a_job_that_ends_slower_than_its_best_level_has_lost_time_and_one_that_varies_has_not() -> None:
    start, fast, slow = varied(90, 0.1, 10), varied(54, 0.1, 40), varied(180, 0.1, 30)
    found = lost_at_end([*start, *fast, *slow])
    assert found is not None and found.is_sure and found.now / found.before == pytest.approx(3.4, rel=0.1)
    rounds = [*varied(54, 0.1, 20), *varied(90, 0.1, 20)] * 3
    varies, steady = lost_at_end(rounds), lost_at_end(varied(54, 0.2, 100))
    assert varies is not None and not varies.is_sure and steady is not None and not steady.is_sure
    begun_slow = lost_at_end([*varied(300, 0.1, 20), *fast, *slow])
    assert begun_slow is not None and begun_slow.is_sure, "what was slower at first was never healthy"
    assert lost_at_end(fast[:20]) is None


@pytest.mark.parametrize("purpose", ["manual", "early", "communication"])
def test_a_window_whose_transfers_take_far_longer_than_before_is_not_healthy(purpose: WindowPurpose) -> None:
    verdict = judge(purpose, SlowLink(30))
    now, before = verdict.iteration.current_ms, verdict.iteration.baseline_ms
    assert now is not None and before is not None and 1.3 < now / before < 1.5
    assert verdict.verdict == "undetermined", verdict.summary
    assert "against the baseline window" in verdict.summary
    assert verdict.iteration.rest_ms == pytest.approx(now - before, abs=6)


def test_a_window_nearer_to_the_best_than_to_the_slow_pace_is_not_healthy_by_that() -> None:
    verdict = judge("slow", scale=1.45, past=False, baseline_iteration_s=0.065, current_iteration_s=0.2)
    assert verdict.verdict == "undetermined" and "instead of 65.0 ms. They lost" in verdict.summary, verdict.summary
    over = judge("slow", past=False, baseline_iteration_s=0.065, current_iteration_s=0.2)
    assert over.verdict == "healthy" and "slowdown was over" in over.summary and over.iteration.rest_ms == 0.0


@pytest.mark.parametrize("purpose", ["baseline", "early", "manual", "expected"])
def test_no_purpose_is_excused_from_the_best_pace(purpose: WindowPurpose) -> None:
    slow = judge(purpose, scale=1.6, past=False, baseline_iteration_s=0.065, current_iteration_s=0.11)
    assert slow.verdict == "undetermined", slow.summary
    outside = judge(purpose, scale=1.6, past=False, baseline_iteration_s=0.065, current_iteration_s=0.07)
    assert outside.verdict == "healthy", "capturing may have made the difference"
    meanwhile = judge(purpose, scale=2.4, past=False, baseline_iteration_s=0.065, current_iteration_s=0.066)
    assert meanwhile.verdict == "undetermined", "it got slow as the window opened"
    unknown = judge(purpose, scale=1.6, past=False, baseline_iteration_s=0.065, current_iteration_s=None)
    assert unknown.verdict == "undetermined", unknown.summary


def test_ranks_are_as_scipy_would_have_them() -> None:
    """By the definition: how many pairs are in order, less half, over the spread that chance gives."""
    random = np.random.default_rng(1)
    now, then = random.integers(0, 9, (5, 12)).astype(float), random.integers(0, 7, (5, 9)).astype(float)
    for worker in range(5):
        found = rank_errors(now[worker], then[worker])
        pairs = sum((a > b) + (a == b) / 2 for a in now[worker] for b in then[worker])
        ties = np.unique(np.concatenate([now[worker], then[worker]]), return_counts=True)[1]
        spread = 12 * 9 / 12 * (22 - sum(t**3 - t for t in ties) / (21 * 20))
        assert found == pytest.approx((pairs - 54) / spread**0.5)


def view_of(best: float, told: float, accelerator: bool = True) -> View:
    """A window as long as its baseline window; `best` and `told` are outside of windows, by its mean iteration."""
    before, patterns = (
        synthesize(FleetPlan(workers=2, seed=3, accelerator=accelerator), (), number) for number in (1, 2)
    )
    suspects, settings = localize(patterns, before, Settings()), Settings()
    mean_s = suspects.fleet.mean_iteration_us / 1e6
    window = msgspec.structs.replace(
        synthesize_window(patterns, "slow", before),
        baseline_iteration_s=best * mean_s,
        current_iteration_s=told * mean_s,
    )
    return View(suspects, WindowContext(job="job", window=window, expected_workers=2), settings)


@pytest.mark.parametrize(
    ("told", "accelerator", "is_stated"), [(0.99, True, True), (1.06, True, False), (0.99, False, False)]
)
def test_the_pace_outside_counts_only_where_the_window_shows_all_that_was_told(
    told: float, accelerator: bool, is_stated: bool
) -> None:
    """Best 20 ms, told 25, healthy again: 23.0 ms in the baseline window and 23.6 in this one are recording's cost."""
    view = view_of(0.85, told, accelerator)
    past = view.suspects.baseline
    assert view.shows_slowdown and past is not None
    assert view.iteration_us < past.mean_iteration_us * (1 + view.settings.min_gain)
    expected_us = view.stated_baseline_us if is_stated else past.mean_iteration_us
    assert view.baseline_us == pytest.approx(expected_us)
