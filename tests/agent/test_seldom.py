"""Long iterations far apart that cost more than before are noticed at the fourth; what jobs always did is not."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from eroica.agent.slowdown import Slowdown, Trigger
from eroica.settings import Settings

USUAL_S = 0.1
WARM_UP = 10


def first_trigger(durations: Iterator[float]) -> tuple[int, Trigger] | None:
    slowdown = Slowdown(Settings())
    for iteration, duration in enumerate(durations, 1):
        found = slowdown.observe(iteration, duration)
        if found is not None:
            return iteration, found
    return None


def job(every: int, now_s: float, before_s: float, since: int, seed: int, count: int = 2400) -> Iterator[float]:
    """Usual iterations; each `every`-th is longer by `before_s`, from `since` on by `now_s`, give or take 15 %."""
    chance = random.Random(seed)
    for iteration in range(1, count):
        usual_s = USUAL_S * chance.lognormvariate(0.0, 0.04)
        longer_s = now_s if iteration > since else before_s
        yield usual_s + (longer_s * chance.uniform(0.85, 1.15) if iteration % every == 0 else 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("every", "now_s", "before_s"), [(26, 0.6, 0.1), (30, 1.0, 0.0), (50, 5.0, 0.4), (100, 3.0, 0.5)]
)
def test_the_fourth_long_iteration_asks_for_a_window(every: int, now_s: float, before_s: float, seed: int) -> None:
    since = 6 * every
    found = first_trigger(job(every, now_s, before_s, since, seed))
    assert found is not None
    iteration, trigger = found
    assert trigger.kind == "seldom" and since + 4 * every < iteration <= since + 5 * every - 5
    assert abs(trigger.next_iteration - since - 5 * every) <= 1 and trigger.interval == pytest.approx(every)
    assert f"every {every} iterations" in trigger.reason and "4 times so far" in trigger.reason
    now, then = USUAL_S + now_s / every, USUAL_S + before_s / every
    assert trigger.current_s == pytest.approx(now, rel=0.1) and trigger.baseline_s == pytest.approx(then, rel=0.1)
    assert trigger.period_s == pytest.approx(every * now, rel=0.1)


@pytest.mark.parametrize(
    ("every", "now_s", "before_s", "since"),
    [
        (40, 2.0, 2.0, 0),  # an evaluation that was always there
        (40, 2.4, 2.0, 400),  # hardly longer
        (50, 0.3, 0.0, 300),  # costs six per cent
        (400, 4.0, 0.0, 800),  # too seldom for a habit so far
        (100, 4.0, 0.0, 150),  # it begins after two intervals: who knows that it is new
    ],
)
def test_these_do_not(every: int, now_s: float, before_s: float, since: int) -> None:
    assert first_trigger(job(every, now_s, before_s, since, seed=1)) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.1, 0.25])
def test_chance_does_not(noise: float, seed: int) -> None:
    chance = random.Random(seed)
    heavy = (
        USUAL_S * chance.lognormvariate(0.0, noise) * (chance.paretovariate(1.5) if chance.random() < 0.03 else 1.0)
        for _ in range(20_000)
    )
    found = first_trigger(heavy)
    assert found is None or found[1].kind != "seldom"


def test_two_habits_at_once_are_told_apart() -> None:
    """An evaluation as ever, and a checkpoint between them that begins to take very long."""
    chance = random.Random(3)

    def one(iteration: int) -> float:
        saving_s = 8.0 if iteration > 500 else 0.6
        longer_s = 1.0 * (iteration % 40 == 0) + saving_s * (iteration % 90 == 0)
        return USUAL_S * chance.uniform(0.97, 1.03) + longer_s

    found = first_trigger(one(iteration) for iteration in range(1, 1500))
    assert found is not None
    assert found[1].kind == "seldom" and "every 90 iterations" in found[1].reason


def triggers(durations: Iterator[float], left_out: range = range(0)) -> list[tuple[int, Trigger]]:
    slowdown = Slowdown(Settings())
    found = []
    for iteration, duration in enumerate(durations, 1):
        trigger = None if iteration in left_out else slowdown.observe(iteration, duration)
        if trigger is not None and trigger.kind == "seldom":
            found.append((iteration, trigger))
    return found


def test_what_grows_with_everything_else_is_not_the_long_iterations_doing() -> None:
    """An evaluation as ever, in a job that becomes twice as slow altogether."""
    chance = random.Random(4)
    durations = (
        chance.uniform(0.097, 0.103) * (2.0 if iteration > 700 else 1.0) * (21.0 if iteration % 50 == 0 else 1.0)
        for iteration in range(1, 2400)
    )
    found = triggers(durations)
    assert found
    for _, trigger in found:
        assert trigger.baseline_s is not None and trigger.current_s - trigger.baseline_s <= 0.45 * trigger.current_s


def test_a_habit_that_has_ended_is_not_told_again() -> None:
    def one(iteration: int) -> float:
        saving_s = 3.0 if 400 < iteration <= 1000 and iteration % 50 == 0 else 0.0
        return USUAL_S + saving_s + (0.07 if iteration % 170 == 0 else 0.0)

    found = triggers(one(iteration) for iteration in range(1, 5000))
    assert found and max(iteration for iteration, _ in found) <= 1060


@pytest.mark.parametrize("gap", [range(530, 545), range(545, 556), range(640, 690)])
def test_iterations_that_a_window_leaves_out_do_not_hide_the_habit(gap: range) -> None:
    found = triggers(job(50, 5.0, 0.4, 400, seed=1), gap)
    assert found and found[0][0] <= 400 + 7 * 50


def test_where_iterations_take_turns_distances_are_still_iterations() -> None:
    """Of each four one is long: rollouts; from some moment on every two-hundredth takes very long."""
    chance = random.Random(2)

    def one(iteration: int) -> float:
        usual_s = (1.0 if iteration % 4 == 0 else 0.1) * chance.uniform(0.97, 1.03)
        return usual_s + (15.0 if iteration > 1000 and iteration % 200 == 0 else 0.0)

    (_, trigger), *_ = triggers(one(iteration) for iteration in range(1, 3000))
    assert trigger.interval == pytest.approx(200) and abs(trigger.next_iteration - 2000) < 4
    assert trigger.period_s == pytest.approx(200 * 0.325 + 15, rel=0.05)
