from __future__ import annotations

import numpy as np

from eroica.localize.excess import (
    excess_over_baseline,
    excess_over_peers,
)


def test_one_culprit_shifts_nobody_elses_reference() -> None:
    time = np.tile(np.array([[10.0], [10.0], [500.0], [10.0]]), (1, 5))
    assert excess_over_peers(time, np.zeros(4)).excess_us.tolist() == [0, 0, 490, 0]


def test_a_jumpy_excess_is_weaker_than_a_steady_one() -> None:
    steady = np.vstack([np.full(20, 30.0) + np.tile([1.0, -1.0], 10), np.full((2, 20), 10.0)])
    jumpy = steady.copy()
    jumpy[0] = np.where(np.arange(20) == 7, 410.0, 10.0)
    roles = np.zeros(3)
    both = [excess_over_peers(time, roles) for time in (steady, jumpy)]
    assert both[0].excess_us[0] == both[1].excess_us[0] == 20
    assert both[0].strength[0] > 50
    assert both[1].strength[0] < 2


def test_a_worker_without_baseline_has_no_excess_over_it() -> None:
    now = np.array([[10.0, 12.0], [10.0, 12.0]])
    before = np.array([[1.0, 1.0], [np.nan, np.nan]])
    excess = excess_over_baseline(now, before)
    assert excess.excess_us[0] == 10
    assert np.isnan(excess.excess_us[1])
    assert excess.strength[1] == 0


def test_what_a_short_baseline_saw_once_by_luck_has_not_grown_for_sure() -> None:
    """Sampled time: 22 samples of 10 ms in 5 s now, 2 in 2 s then, where the truth is 3.4 a second in both."""
    now, then = np.zeros((1, 300)), np.zeros((1, 120))
    now[0, ::14], then[0, ::60] = 10_000.0, 10_000.0
    assert excess_over_baseline(now, then).strength[0] < 3.0
    steady = excess_over_baseline(np.full((1, 300), 900.0) + now / 10, np.full((1, 120), 100.0) + then / 10)
    assert steady.strength[0] > 10.0
