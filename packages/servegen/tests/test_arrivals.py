from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from made import pool_of, requests
from servegen.arrivals import (
    STATE_TYPE,
    Block,
    client_key,
    draw_gaps,
    enter,
    exact,
    first_state,
    gap_cv,
    renewal,
    residual_cdf,
    residual_quantile,
)
from servegen.pool import GAMMA, POISSON, WEIBULL

CASES = [(POISSON, 1.0), (GAMMA, 0.1), (GAMMA, 4.0), (WEIBULL, 0.5), (WEIBULL, 2.0)]


def block(start_s: float, length_s: float, rate: float, process: int, shape: float) -> Block:
    one = np.ones(1)
    return Block(int(start_s * 1e6), int(length_s * 1e6), 0, rate * one, np.array([process], np.int8), shape * one)


@pytest.mark.parametrize(("process", "shape"), CASES)
def test_gaps_have_mean_one_and_the_cv_of_their_shape(process: int, shape: float) -> None:
    gaps = draw_gaps(np.random.default_rng(1), process, shape, 400_000)
    assert gaps.mean() == pytest.approx(1, rel=0.03)
    assert gaps.std() == pytest.approx(gap_cv(process, shape), rel=0.05)


@pytest.mark.parametrize(("process", "shape"), CASES)
def test_the_residual_time_is_that_of_a_long_simulated_stream(process: int, shape: float) -> None:
    """The slow twin: look at a long stream at random moments and measure the time to the next arrival."""
    rng = np.random.default_rng(2)
    times = np.cumsum(draw_gaps(rng, process, shape, 500_000))
    moments = rng.random(50_000) * times[-1] * 0.99
    seen = times[np.searchsorted(times, moments)] - moments
    for x in (0.05, 0.3, 1.0, 4.0):
        expected = residual_cdf(np.array([process], np.int8), np.array([shape]), np.array([x]))[0]
        assert (seen <= x).mean() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("process", "shape"), CASES)
def test_the_quantile_of_the_residual_time_inverts_it(process: int, shape: float) -> None:
    u = np.linspace(0.01, 0.999, 50)
    processes, shapes = np.full(50, process, np.int8), np.full(50, shape)
    x = residual_quantile(processes, shapes, u)
    assert residual_cdf(processes, shapes, x) == pytest.approx(u, abs=1e-9)


def test_an_unchanged_process_carries_its_open_gap_exactly() -> None:
    state = np.array([(3.25, GAMMA, 0.2)], STATE_TYPE)
    assert enter(state, block(0, 600, 5.0, GAMMA, 0.2))["residual"][0] == 3.25


def test_an_open_gap_survives_windows_without_an_arrival() -> None:
    state = np.array([(3.0, POISSON, 1.0)], STATE_TYPE)
    for w in range(2):
        times, state = renewal(0, [1], state, block(600 * w, 600, 1 / 600, POISSON, 1.0))
        assert not len(times[0])
    assert state["residual"][0] == pytest.approx(1.0)


def test_cutting_a_window_into_blocks_leaves_the_process_stationary() -> None:
    """Counts over many short blocks have the mean, and over long stretches the dispersion, of the process."""
    keys = list(range(300))
    state = first_state(1, keys)
    many = np.ones(300)
    total = np.zeros(300)
    for b in range(60):
        piece = Block(b * 10_000_000, 10_000_000, 0, 2.0 * many, np.full(300, GAMMA, np.int8), 0.25 * many)
        times, state = renewal(1, keys, state, piece)
        total += [len(t) for t in times]
    assert total.mean() == pytest.approx(1200, rel=0.02)
    assert total.var() / total.mean() == pytest.approx(4, rel=0.35)


def test_expected_counts_match_rates_in_every_window_whatever_came_before() -> None:
    """Bursty, calm, Weibull and rare windows follow each other; 200 seeds."""
    rates = [0.02, 0.001, 0.02, 0.05, 0.0008, 0.03]
    shapes = [0.04, 4.0, 0.5, 1.0, 0.1, 4.0]
    processes = [GAMMA, GAMMA, WEIBULL, POISSON, GAMMA, GAMMA]
    keys = [client_key(f"{i}") for i in range(4000)]
    state = first_state(7, keys)
    for w, (rate, shape, process) in enumerate(zip(rates, shapes, processes, strict=True)):
        ones = np.ones(len(keys))
        window = Block(w * 600_000_000, 600_000_000, 0, rate * ones, np.full(len(keys), process, np.int8), shape * ones)
        times, state = renewal(7, keys, state, window)
        counts = np.array([len(t) for t in times])
        error = counts.std() / len(keys) ** 0.5
        assert abs(counts.mean() - rate * 600) < 4 * error, (w, counts.mean(), rate * 600)


def test_exact_counts_are_fixed_and_the_last_arrival_is_cut() -> None:
    for rate, expected in ((1.0, 599), (600.4 / 600, 600), (1 / 600, 0), (0.9 / 600, 0)):
        for seed in range(5):
            assert len(exact(seed, [3], block(0, 600, rate, GAMMA, 0.1))[0]) == expected


def test_renewal_counts_vary_as_they_do_in_life() -> None:
    pool = pool_of([[1.0]], [[0.25]])
    counts = [requests(pool, hours=1 / 6, seed=seed).num_rows for seed in range(60)]
    assert np.mean(counts) == pytest.approx(600, rel=0.03)
    assert 2 < np.var(counts) / np.mean(counts) < 7


def test_gaps_of_a_generated_stream_have_the_drawn_distribution() -> None:
    table = requests(pool_of([[8.0] * 6], [[4.0] * 6]), hours=1, seed=5)
    gaps = np.diff(table["time_us"].to_numpy()) / 1e6 * 8
    assert stats.kstest(gaps, stats.gamma(4, scale=0.25).cdf).pvalue > 0.001
