"""Slow stretches that come and go are noticed at the third; what healthy jobs do is not."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from eroica.agent.bursts import Bursts
from eroica.agent.slowdown import Slowdown, Trigger
from eroica.settings import Settings

BEST_S = 0.1
HEALTHY = 300


def first_trigger(durations: Iterator[float], absolves: bool = False) -> tuple[int, Trigger] | None:
    slowdown = Slowdown(Settings())
    for iteration, duration in enumerate(durations, 1):
        found = slowdown.observe(iteration, duration)
        if found is not None and not absolves:
            return iteration, found
    return None


def noisy(seconds: float, chance: random.Random) -> float:
    return seconds * chance.uniform(0.95, 1.1)


def comes_and_goes(slow_s: float, bad: int, good: int, seed: int, iterations: int = 3000) -> Iterator[float]:
    """`bad` slow iterations, `good` fast ones, and so on, after a healthy beginning."""
    chance = random.Random(seed)
    for iteration in range(iterations):
        place = (iteration - HEALTHY) % (bad + good)
        yield noisy(slow_s if iteration >= HEALTHY and place < bad else BEST_S, chance)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("slow_s", "bad", "good"), [(0.6, 9, 51), (0.3, 25, 75), (0.2, 40, 40)])
def test_the_third_slow_stretch_at_the_latest_asks_for_a_window_while_it_lasts(
    slow_s: float, bad: int, good: int, seed: int
) -> None:
    found = first_trigger(comes_and_goes(slow_s, bad, good, seed))
    assert found is not None
    iteration, trigger = found
    assert iteration <= HEALTHY + 2 * (bad + good) + bad
    assert (iteration - HEALTHY - 1) % (bad + good) < bad
    assert trigger.kind == "slow" and BEST_S < trigger.current_s < 1.1 * slow_s
    assert any(
        words in trigger.reason for words in ("slow for a while 3 times", "above the best", "than at their best")
    )


def test_stretches_that_cost_little_do_not() -> None:
    assert first_trigger(comes_and_goes(0.2, 6, 194, 1)) is None


@pytest.mark.parametrize(("afterwards", "is_habit"), [(1.3, False), (2.0, True)])
def test_a_machine_that_is_a_little_slower_for_minutes_is_no_burst(afterwards: float, is_habit: bool) -> None:
    bursts = Bursts()
    stretch = [1.7] * 6 + [afterwards] * 300 + [1.0] * 60
    assert any(bursts.observe(BEST_S * times, BEST_S) for times in stretch * 5) == is_habit


def test_one_or_two_stretches_do_not() -> None:
    chance = random.Random(2)
    times = [noisy(0.6 if 400 <= i < 410 or 700 <= i < 710 else BEST_S, chance) for i in range(3000)]
    assert first_trigger(iter(times)) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["evaluation", "pushed aside", "lengths", "heavy tail"])
def test_what_healthy_jobs_do_asks_for_nothing(kind: str, seed: int) -> None:
    chance = random.Random(seed)

    def one(iteration: int) -> float:
        if kind == "evaluation":
            return noisy(BEST_S, chance) + (1.0 if iteration % 40 == 0 else 0.0)
        if kind == "pushed aside":
            return noisy(BEST_S * (2.5 if iteration % 50 < chance.choice([0, 1, 2, 3, 4]) else 1.0), chance)
        if kind == "lengths":
            return BEST_S * chance.uniform(0.5, 1.0)
        return BEST_S * chance.lognormvariate(0.0, 0.4)

    assert first_trigger(one(iteration) for iteration in range(5000)) is None
