"""What iterations took before, on a device: recording makes them longer there, the more they wait for launches."""

from __future__ import annotations

import msgspec
import pytest

from eroica.diagnosis import WindowContext
from eroica.diagnosis.view import View
from eroica.localize import localize
from eroica.settings import Settings
from support import FleetPlan, synthesize, synthesize_window


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
