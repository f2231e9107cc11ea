"""EROICA, equations 6 to 11: the literal rule of the paper fails in each of its traps, ours does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.localize import rule
from eroica.localize.rule import (
    BETA_FLOOR,
    DELTA,
    USE_FLOOR,
    distance_from_expectation,
    peer_distances,
)
from eroica.model.pattern import FunctionKey
from eroica.settings import Settings

SETTINGS = Settings()
FLOORS = np.array([BETA_FLOOR, USE_FLOOR, USE_FLOOR])


# --- the paper's rule, word by word ---


def literal_flags(patterns: np.ndarray, seed: int = 0, shared: bool = False) -> np.ndarray:
    """Max-normalized Manhattan distance to min(100, W) random peers, Δ > median + 5 MAD, β > 0.01."""
    generator = np.random.default_rng(seed)
    highest = patterns.max(axis=0)
    scaled = patterns / np.where(highest > 0, highest, 1)
    count = min(100, len(patterns))
    sample = generator.choice(len(patterns), count, replace=False)
    delta = np.empty(len(patterns))
    for worker in range(len(patterns)):
        peers = sample if shared else generator.choice(len(patterns), count, replace=False)
        delta[worker] = np.mean(np.abs(scaled[worker] - scaled[peers]).sum(axis=1) >= 0.4)
    middle = np.median(delta)
    return (delta > middle + 5 * np.median(np.abs(delta - middle))) & (patterns[:, 0] > 0.01)


def our_flags(patterns: np.ndarray, roles: np.ndarray | None = None) -> np.ndarray:
    roles = np.zeros(len(patterns), dtype=np.intp) if roles is None else roles
    return peer_distances(patterns, roles)[1] & (patterns[:, 0] > SETTINGS.beta_gate)


def all_pairs(patterns: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Share of peers that differ, every worker with every peer."""
    highest = np.nanmax(np.nan_to_num(patterns), axis=0, initial=0.0)
    scale = np.where(highest > 0, highest, 1.0)
    difference = np.abs(patterns[:, None, :] - patterns[None, sample, :])
    difference[~(difference >= FLOORS)] = 0.0
    differs = (difference / scale).sum(axis=2) >= DELTA
    others = len(sample) - np.isin(np.arange(len(patterns)), sample)
    return differs.sum(axis=1) / np.maximum(others, 1)


@st.composite
def fleets(draw: st.DrawFn) -> np.ndarray:
    """Clusters, outliers, unknown values, values on the edges of floors."""
    workers, seed = draw(st.integers(1, 130)), draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    spread = draw(st.sampled_from([0.0, 0.004, 0.03, 0.1, 0.5]))
    patterns = np.abs(random.random(3) + random.normal(0, spread, (workers, 3)))
    patterns[random.random(workers) < draw(st.sampled_from([0.0, 0.02, 0.4]))] = random.random(3)
    patterns[random.random(workers) < draw(st.sampled_from([0.0, 0.1, 0.9])), 1:] = np.nan
    rounded = draw(st.sampled_from([0, 20, 50]))
    return np.round(patterns * rounded) / rounded if rounded else patterns


@settings(deadline=None, max_examples=150)
@given(fleets())
def test_the_distance_is_that_of_its_slow_twin(patterns: np.ndarray) -> None:
    sample = rule.sample_peers(len(patterns), 40)
    assert np.array_equal(rule.differential_distance(patterns, sample), all_pairs(patterns, sample))


# --- the traps ---


def many_workers(count: int, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.004, (count, 3))
    return np.abs(np.array([0.2, 0.8, 0.5]) + noise)


def test_trap_1_one_outlier_of_thousands_flags_nobody_else() -> None:
    patterns = many_workers(3400)
    patterns[1234] = (0.4, 0.2, 0.5)
    assert literal_flags(patterns).sum() > 40
    assert np.flatnonzero(our_flags(patterns)).tolist() == [1234]


def test_trap_2_noise_around_nothing_is_no_distance() -> None:
    noise = np.random.default_rng(2)
    patterns = np.column_stack([np.full(512, 0.2), np.full(512, 0.9), np.abs(noise.normal(0, 0.002, 512))])
    assert literal_flags(patterns, shared=True).sum() > 40
    assert our_flags(patterns).sum() == 0


def test_trap_3_a_minority_stage_is_compared_with_itself() -> None:
    stage = np.arange(512) % 8
    patterns = many_workers(512)
    patterns[stage == 7] += (0.15, 0.0, 0.3)
    assert np.array_equal(literal_flags(patterns, shared=True), stage == 7)
    assert our_flags(patterns, stage).sum() == 0


def test_trap_3_a_culprit_inside_its_stage_is_still_found() -> None:
    stage = np.arange(64) % 8
    patterns = many_workers(64)
    patterns[stage == 7] += (0.15, 0.0, 0.3)
    patterns[15] = (0.6, 0.1, 0.5)
    assert np.flatnonzero(our_flags(patterns, stage)).tolist() == [15]


def test_trap_4_a_function_that_only_three_workers_run_flags_these_three() -> None:
    patterns = np.zeros((3400, 3))
    patterns[[5, 50, 500]] = (0.28, 0.4, 0.1)
    present_only = patterns[[5, 50, 500]]
    assert literal_flags(present_only).sum() == 0
    assert np.flatnonzero(our_flags(patterns)).tolist() == [5, 50, 500]


def test_trap_5_throttled_workers_are_found_as_in_the_paper() -> None:
    noise = np.random.default_rng(3)
    throttled = np.arange(2560) < 300
    beta = np.where(throttled, 0.036, 0.030) + noise.normal(0, 0.0005, 2560)
    clock = np.where(throttled, 490, 1380) / 1980 + noise.normal(0, 0.01, 2560)
    patterns = np.column_stack([beta, clock, np.full(2560, 0.02)])
    assert np.array_equal(our_flags(patterns), throttled)


def test_trap_6_a_function_too_short_to_be_sampled_differs_in_nothing_but_its_time() -> None:
    patterns = np.array([[0.2, 0.8, 0.1]] * 7 + [[0.2, np.nan, np.nan]])
    as_zeros = np.nan_to_num(patterns)
    assert literal_flags(as_zeros).tolist() == [False] * 7 + [True]
    assert our_flags(patterns).sum() == 0


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_tiny_fleets_divide_by_nobody(workers: int) -> None:
    distances, flags = peer_distances(np.full((workers, 3), 0.5), np.zeros(workers, dtype=np.intp))
    assert distances.tolist() == [0] * workers
    assert not flags.any()


# --- expectation ---


def literal_distance(kind: str, beta: np.ndarray) -> np.ndarray:
    return np.maximum(beta - {"python": 0.01, "collective": 0.30, "compute": 1.0}[kind], 0)


@pytest.mark.parametrize("kind", ["python", "collective", "compute"])
def test_with_an_accelerator_the_distance_is_the_papers(kind: str) -> None:
    beta = np.array([0.0, 0.005, 0.06, 0.2, 0.5, 1.0])
    key = FunctionKey(kind=kind, name="f")
    ours = distance_from_expectation(key, beta, np.full(6, np.nan), True, Settings())
    np.testing.assert_allclose(ours, literal_distance(kind, beta))
