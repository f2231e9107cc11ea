from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.localize.excess import (
    excess_over_baseline,
    excess_over_peers,
    find_measure,
    median_of_others,
    standard_error,
)


def slow_median_of_others(values: np.ndarray, roles: np.ndarray) -> np.ndarray:
    result = np.full(values.shape, np.nan)
    for worker, role in enumerate(roles):
        others = [other for other in range(len(roles)) if roles[other] == role and other != worker]
        if others:
            result[..., worker] = np.median(values[..., others], axis=-1)
    return result


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 2)), min_size=1, max_size=12))
def test_the_median_of_others_is_that_of_its_slow_twin(workers: list[tuple[float, int]]) -> None:
    values = np.array([[value for value, _ in workers], [-value for value, _ in workers]])
    roles = np.array([role for _, role in workers])
    np.testing.assert_allclose(median_of_others(values, roles), slow_median_of_others(values, roles))


def test_equal_values_do_not_confuse_the_median_of_others() -> None:
    assert median_of_others(np.array([5.0, 5.0, 5.0, 1.0]), np.zeros(4)).tolist() == [5, 5, 5, 5]


def test_a_worker_alone_in_its_role_has_no_excess() -> None:
    excess = excess_over_peers(np.array([[1.0, 2.0], [9.0, 9.0]]), np.array([0, 1]))
    assert np.isnan(excess.excess_us).all()
    assert excess.strength.tolist() == [0, 0]


def test_one_culprit_shifts_nobody_elses_reference() -> None:
    time = np.tile(np.array([[10.0], [10.0], [500.0], [10.0]]), (1, 5))
    assert excess_over_peers(time, np.zeros(4)).excess_us.tolist() == [0, 0, 490, 0]


def test_a_worker_on_which_everything_is_slower_is_allowed_more() -> None:
    time = np.tile(np.array([[10.0], [10.0], [20.0]]), (1, 4))
    assert excess_over_peers(time, np.zeros(3)).excess_us[2] == 10
    assert excess_over_peers(time, np.zeros(3), np.array([1.0, 1.0, 2.0])).excess_us[2] == 0


def test_a_jumpy_excess_is_weaker_than_a_steady_one() -> None:
    steady = np.vstack([np.full(20, 30.0) + np.tile([1.0, -1.0], 10), np.full((2, 20), 10.0)])
    jumpy = steady.copy()
    jumpy[0] = np.where(np.arange(20) == 7, 410.0, 10.0)
    roles = np.zeros(3)
    both = [excess_over_peers(time, roles) for time in (steady, jumpy)]
    assert both[0].excess_us[0] == both[1].excess_us[0] == 20
    assert both[0].strength[0] > 50
    assert both[1].strength[0] < 2


def test_one_iteration_has_no_known_noise() -> None:
    assert np.isinf(standard_error(np.ones((2, 1)))).all()


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


def _waits(*means: float, noise: float = 1.0) -> np.ndarray:
    return np.array(means)[:, None] + noise * np.random.default_rng(0).standard_normal((len(means), 20))


def test_the_few_that_wait_are_the_measure_where_most_are_late() -> None:
    late = find_measure(_waits(0, 1, 5, 2, 40, 41, 41.5), np.zeros(7, np.intp))
    assert late.tolist() == [False] * 4 + [True] * 3


@pytest.mark.parametrize(
    "waits",
    [
        _waits(0, 40, 41, 42, 41),  # most wait: a median passes over the late one
        _waits(0, 1, 2, 1, 40),  # one may just have less to do
        _waits(0, 1, 5, 2, 40, 60, 79),  # these do not agree
        _waits(*np.zeros(9)),
        _waits(0, 0, 0, 0.6, 0.6),  # that may be an accident
        np.zeros((4, 20)),
        _waits(3)[:1],
    ],
)  # fmt: skip
def test_all_are_the_measure_unless_a_minority_surely_waits_alike(waits: np.ndarray) -> None:
    assert find_measure(waits, np.zeros(len(waits), np.intp)).all()


def test_each_role_has_its_own_measure() -> None:
    roles = np.array([0] * 5 + [1] * 5)
    found = find_measure(_waits(0, 0, 0, 40, 40, 9, 9, 9, 9, 9), roles)
    assert found.tolist() == [False] * 3 + [True] * 7


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=12))
def test_the_median_of_those_that_count_is_that_of_its_slow_twin(drawn: list[tuple[int, bool]]) -> None:
    values, counted = np.array([one for one, _ in drawn], float), np.array([two for _, two in drawn])
    found = median_of_others(values, np.zeros(len(drawn), np.intp), counted)
    for at in range(len(drawn)):
        others = np.delete(values, at)[np.delete(counted, at)]
        wanted = np.median(others) if others.size and counted.sum() > 1 else np.nan
        np.testing.assert_allclose(found[at], wanted)
