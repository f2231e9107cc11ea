"""Iterations that take turns are compared cycle by cycle."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest

from eroica.agent.cycles import LOOKED_AT, Cycles, find_cycle
from eroica.agent.slowdown import Slowdown, Trigger
from eroica.settings import Settings

ROLLOUT = (0.30, 0.03, 0.03, 0.03)


def turns(cycle: tuple[float, ...], count: int, noise: float, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [one * math.exp(noise * rng.gauss(0, 1)) for one in itertools.islice(itertools.cycle(cycle), count)]


@pytest.mark.parametrize(
    ("cycle", "period"),
    [
        (ROLLOUT, 4),
        ((0.1, 0.2), 2),
        ((0.1,) * 9 + (0.3,), 10),
        ((0.3,) + (0.05,) * 15, 16),
        ((0.1, 0.3, 0.1, 0.2), 4),
        ((0.1,), 1),
        ((0.1, 0.12), 1),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.06])
@pytest.mark.parametrize("seed", range(3))
def test_the_shortest_cycle_is_found(cycle: tuple[float, ...], period: int, noise: float, seed: int) -> None:
    assert find_cycle(turns(cycle, LOOKED_AT, noise, seed)) == period


@pytest.mark.parametrize("seed", range(60))
def test_noise_and_slow_iterations_at_random_are_no_cycle(seed: int) -> None:
    rng = random.Random(seed)
    noise, slow = rng.choice((0.02, 0.1, 0.3, 0.6)), rng.choice((0.0, 0.05, 0.2, 0.4))
    durations = [0.1 * math.exp(noise * rng.gauss(0, 1)) * (4 if rng.random() < slow else 1) for _ in range(LOOKED_AT)]
    assert find_cycle(durations) == 1


def test_too_few_iterations_are_no_cycle() -> None:
    assert find_cycle([]) == find_cycle([0.1, 0.4, 0.1]) == 1


def test_a_cycle_is_learned_once_and_then_counts_for_what_came_before() -> None:
    cycles, durations = Cycles(), turns(ROLLOUT, LOOKED_AT + 8, 0.0)
    found = [cycles.add(one) for one in durations]
    assert found[: LOOKED_AT - 1] == durations[: LOOKED_AT - 1]
    mean = pytest.approx(sum(ROLLOUT) / 4)
    assert found[LOOKED_AT - 1] == [mean] * (LOOKED_AT - 4 + 1)
    assert found[LOOKED_AT:] == [mean] * 8
    assert cycles.period == 4


def test_what_comes_to_take_turns_later_stays_what_it_is() -> None:
    cycles = Cycles()
    later = turns(ROLLOUT, 400, 0.01)
    assert [cycles.add(one) for one in turns((0.03,), 200, 0.01) + later][200:] == later
    assert cycles.period == 1


# --- the trigger ---


def first_trigger(durations: Iterator[float] | list[float]) -> tuple[int, Trigger] | None:
    slowdown = Slowdown(Settings())
    for iteration, duration in enumerate(durations, 1):
        if (trigger := slowdown.observe(iteration, duration)) is not None:
            return iteration, trigger
    return None


@pytest.mark.parametrize("seed", range(5))
def test_a_longer_rollout_is_found(seed: int) -> None:
    """It costs 30 % of the time, but of single iterations only every fourth is slower."""
    job = turns(ROLLOUT, 600, 0.05, seed) + turns((0.42, 0.03, 0.03, 0.03), 400, 0.05, seed + 100)
    found = first_trigger(job)
    assert found is not None and 600 < found[0] < 800
    assert found[1].kind == "slow"
    assert found[1].current_s / found[1].baseline_s == pytest.approx(0.51 / 0.39, abs=0.12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cycle", [ROLLOUT, (0.1, 0.2), (0.1,) * 9 + (0.5,)])
def test_taking_turns_is_no_slowdown(cycle: tuple[float, ...], seed: int) -> None:
    assert first_trigger(turns(cycle, 6000, 0.08, seed)) is None


@pytest.mark.parametrize("every", [50, 250])
def test_an_evaluation_now_and_then_is_no_slowdown_of_cycles(every: int) -> None:
    job = turns(ROLLOUT, 6000, 0.05)
    assert first_trigger([one * 20 if at % every == 0 else one for at, one in enumerate(job, 1)]) is None
