"""The slow trigger on simulated jobs: what must be found, and what must not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator

import pytest

from eroica.agent.slowdown import Silence, Slowdown, Trigger
from eroica.settings import Settings


def healthy(rng: random.Random, count: int, noise: float, drift: float = 0.0, bursts: float = 0.0) -> Iterator[float]:
    """A job on shared cores: lognormal noise, a slow drift with a memory of 2000 iterations, bursts of other load.

    Noise 0.08 makes the mean 1.4 times the minimum of a long run, 0.16 twice.
    """
    wander, left, factor = 0.0, 0, 1.0
    for _ in range(count):
        wander += -wander / 2000 + drift * math.sqrt(2 / 2000) * rng.gauss(0, 1)
        if not left and rng.random() < bursts:
            left, factor = int(rng.expovariate(1 / 8)) + 1, 1 + min(5.0, 0.3 * rng.paretovariate(1.5))
        duration = 0.05 * math.exp(noise * rng.gauss(0, 1) + wander)
        if left:
            left -= 1
            duration *= factor
        yield duration


def watch(durations: Iterable[float], settings: Settings | None = None) -> list[tuple[int, Trigger]]:
    """Triggers by iteration; each is answered by a window that found nothing."""
    trigger_of = Slowdown(settings or Settings())
    found = []
    for iteration, duration in enumerate(durations, 1):
        trigger = trigger_of.observe(iteration, duration)
        if trigger is not None:
            found.append((iteration, trigger))
            trigger_of.absolve()
    return found


def changed(durations: Iterable[float], change: Callable[[int, float], float]) -> Iterator[float]:
    return (change(iteration, duration) for iteration, duration in enumerate(durations, 1))


@pytest.mark.parametrize("noise", [0.05, 0.08, 0.16, 0.25])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_healthy_job_on_busy_cores_asks_at_most_once_an_hour(noise: float, seed: int) -> None:
    assert len(watch(healthy(random.Random(seed), 72_000, noise, drift=0.04, bursts=0.005))) <= 1


@pytest.mark.parametrize("iteration_s", [0.01, 0.05])
def test_somebody_who_takes_the_cores_for_a_moment_is_no_slowdown(iteration_s: float) -> None:
    """Short iterations: fifty of them pass while a compiler runs."""
    rng, moment = random.Random(7), round(3.5 / (1.5 * iteration_s))

    def job(long: int) -> Iterator[float]:
        for at in range(6000):
            yield iteration_s * math.exp(0.03 * rng.gauss(0, 1)) * (1.5 if 3000 <= at < 3000 + long else 1.0)

    assert watch(job(moment)) == []
    found = watch(job(4 * moment))
    assert found and (found[0][0] - 3000) * 1.5 * iteration_s <= 10.0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("iteration_s", [0.02, 0.05, 0.4, 2.0, 6.0])
@pytest.mark.parametrize("onset", [60, 150])
@pytest.mark.parametrize(("times", "seconds"), [(88.0, 15), (20.0, 15), (6.0, 15), (2.0, 15), (1.5, 15), (1.25, 45)])
def test_a_change_is_noticed_within_seconds_or_five_iterations(
    times: float, seconds: int, onset: int, iteration_s: float, seed: int
) -> None:
    job = (duration * iteration_s / 0.05 for duration in healthy(random.Random(seed), 1200 + onset, 0.04))
    if iteration_s <= 0.05:  # ten iterations are left out, and a past of less than three seconds is none
        onset += 200 if iteration_s == 0.02 else 30
    found = watch(changed(job, lambda i, d: d * times if i > onset else d))
    assert found
    waited = found[0][0] - onset
    assert 0 < waited <= max(5 + (iteration_s > 0.5), math.ceil(1.05 * seconds / (times * iteration_s))), waited
    assert found[0][1].current_s / found[0][1].baseline_s == pytest.approx(times, rel=0.2)


def test_long_pauses_in_one_of_ten_iterations_are_found() -> None:
    missed = 0
    for seed in range(10):
        rng = random.Random(seed)
        pauses = random.Random(seed + 100)
        job = healthy(rng, 2600, 0.06)
        found = watch(changed(job, lambda i, d, p=pauses: d * 3 if i > 1000 and p.random() < 0.1 else d))
        assert all(iteration > 1000 for iteration, _ in found)
        missed += not found
    assert missed == 0


def test_iterations_above_what_the_user_expects_are_slow_from_the_start() -> None:
    found = watch(healthy(random.Random(7), 200, 0.05), Settings(expected_iteration_s=0.03))
    assert found[0][0] <= 160
    assert found[0][1].kind == "expected"
    assert watch(healthy(random.Random(7), 200, 0.05), Settings(expected_iteration_s=0.08)) == []


def test_after_a_window_that_found_nothing_it_takes_a_larger_rise() -> None:
    trigger_of = Slowdown(Settings())
    trigger_of.absolve()
    trigger_of.absolve()
    job = changed(healthy(random.Random(8), 1500, 0.01), lambda i, d: d * 1.1 if i > 500 else d)
    assert [t for i, d in enumerate(job, 1) if (t := trigger_of.observe(i, d)) is not None] == []


def test_steady_means_enough_iterations_and_no_rise() -> None:
    trigger_of = Slowdown(Settings())
    steady_at = []
    for iteration, duration in enumerate(healthy(random.Random(9), 400, 0.02), 1):
        trigger_of.observe(iteration, duration * (1.5 if iteration > 300 else 1.0))
        if trigger_of.steady:
            steady_at.append(iteration)
    assert 70 <= steady_at[0] <= 80
    assert 300 < max(steady_at) < 370


def test_numbers_that_are_no_durations_are_left_out() -> None:
    trigger_of = Slowdown(Settings())
    for iteration in range(11, 200):
        assert trigger_of.observe(iteration, (0.0, -1.0, math.nan, math.inf)[iteration % 4]) is None
    assert trigger_of.current_s is None
    assert trigger_of.baseline_s is None


@pytest.mark.parametrize(("slower", "asks"), [(1.25, False), (1.8, True)])
def test_what_the_job_has_lived_through_in_the_last_half_hour_is_no_slowdown(slower: float, asks: bool) -> None:
    """Ten minutes at 69 ms, five at 45: a machine that others use is fast and slow by turns."""
    levels = [(0.069, 8_700), (0.045, 6_700), (0.045 * slower, 1_000)]
    rng = random.Random(5)
    job = (level * math.exp(0.05 * rng.gauss(0, 1)) for level, count in levels for _ in range(count))
    assert bool(watch(job)) == asks


@pytest.mark.parametrize("iteration_s", [3.0, 10.0, 30.0])
@pytest.mark.parametrize("since", [100, 400])
@pytest.mark.parametrize("seed", range(3))
def test_where_iterations_are_long_a_rise_is_found_after_a_few_dozen(iteration_s: float, since: int, seed: int) -> None:
    job = healthy(random.Random(seed), since + 200, 0.05)
    found = watch(changed(job, lambda i, d: d * iteration_s / 0.05 * (1.3 if i > since else 1.0)))
    assert found and 2 < found[0][0] - since <= 45


def beside(slowdown: Slowdown, durations: Iterable[float]) -> tuple[float, Trigger | None]:
    """Iterations during which a window is captured or summarized: seconds until one asks, and what it asks for."""
    past_s = 0.0
    for duration_s in durations:
        past_s += duration_s
        found = slowdown.observe_beside_window(duration_s)
        if found is not None:
            return past_s, found
    return past_s, None


@pytest.mark.parametrize("times", [4.0, 8.0])
def test_a_jump_inside_a_window_is_noticed_there(times: float) -> None:
    rng = random.Random(3)
    slowdown = Slowdown(Settings())
    for at, duration_s in enumerate(healthy(rng, 200, 0.1)):
        assert slowdown.observe(at + 1, duration_s) is None
    usual_s = slowdown.baseline_s or 0.0
    past_s, found = beside(slowdown, (times * usual_s * rng.gauss(1, 0.1) for _ in range(400)))
    assert found is not None and past_s <= max(15.0, 6 * times * usual_s)
    assert found.current_s > found.baseline_s


def test_what_a_window_costs_is_no_slowdown_and_no_past() -> None:
    """Iterations beside it are up to twice as long, one at its end far longer; and nothing of that is remembered."""
    rng = random.Random(4)
    slowdown = Slowdown(Settings())
    for at, duration_s in enumerate(healthy(rng, 600, 0.1)):
        slowdown.observe(at + 1, duration_s)
    usual_s = slowdown.baseline_s or 0.0
    window = [usual_s * rng.uniform(1.2, 1.9) for _ in range(600)]
    window[300] = 2.5
    assert beside(slowdown, window)[1] is None
    assert slowdown.baseline_s == usual_s
    found = [slowdown.observe(1300 + at, duration_s) for at, duration_s in enumerate(healthy(rng, 600, 0.1))]
    assert not any(found)
    later = [slowdown.observe(2000 + at, 1.5 * duration_s) for at, duration_s in enumerate(healthy(rng, 600, 0.1))]
    first = next(at for at, trigger in enumerate(later) if trigger is not None)
    assert first * 1.5 * usual_s <= 15.0


@pytest.mark.parametrize(("left_behind", "is_asked"), [(1.35, False), (1.0, False), (1.9, True)])
def test_what_tracing_leaves_behind_on_a_device_is_no_slowdown(left_behind: float, is_asked: bool) -> None:
    """After the first look launches cost more for good; what is more than that is the job's own."""
    slowdown = Slowdown(Settings())
    chance = random.Random(1)
    found = [slowdown.observe(at, 0.025 * chance.gauss(1.0, 0.03)) for at in range(1, 401)]
    slowdown.traced()
    found += [slowdown.observe(at, 0.025 * left_behind * chance.gauss(1.0, 0.03)) for at in range(401, 3401)]
    assert any(found) == is_asked
    assert slowdown.baseline_s == pytest.approx(0.025 * (1.0 if is_asked else left_behind), rel=0.03)


@pytest.mark.parametrize(
    ("every", "before", "times", "within_s"), [(50, 1.0, 30.0, 60.0), (5, 1.0, 1.5, 150.0), (300, 30.0, 120.0, 450.0)]
)
def test_long_iterations_far_apart_are_noticed_once_they_cost_more_than_they_used_to(
    every: int, before: float, times: float, within_s: float
) -> None:
    """A checkpoint that takes 3 s now; every fifth iteration half as long again; 3 s that become 12."""
    slowdown, onset, took_s = Slowdown(Settings()), 3000, 0.0
    rng = random.Random(every)
    for at in range(1, 9000):
        duration_s = 0.1 * rng.lognormvariate(0, 0.03) * ((times if at > onset else before) if at % every == 0 else 1.0)
        duration_s *= 3.0 if at < 200 else 1.0
        found = slowdown.observe(at, duration_s)
        took_s += duration_s if at > onset else 0.0
        if found is not None:
            break
    assert found is not None and at > onset and took_s <= within_s
    usual_s = 0.1 * (1 + (before - 1) / every)
    assert found.baseline_s == pytest.approx(usual_s, rel=0.1), "though the job began three times as slowly"


POLL_S = 0.05


class Watched:
    """A worker that is polled 20 times a second."""

    def __init__(self, mean_s: float | None = 0.1, **settings: float) -> None:
        self.silence = Silence(Settings(**settings))
        self.now, self.events, self.mean_s = 500.0, 0, mean_s
        self.learning = self.over = False
        self.poll()

    def poll(self, step_s: float = POLL_S) -> bool:
        self.now += step_s
        self.silence.poll(self.now, self.events, self.mean_s, self.learning, self.over)
        return self.silence.silent

    def work(self) -> None:
        self.events += 1
        self.poll()

    def quiet(self, seconds: float) -> bool:
        """Whether it counts as silent after so long without an event."""
        for _ in range(round(seconds / POLL_S)):
            self.poll()
        return self.silence.silent


def test_ten_seconds_without_an_event_are_a_silence_of_a_fast_job() -> None:
    worker = Watched()
    worker.work()
    assert not worker.quiet(9.9)
    assert worker.quiet(0.3)
    assert "no event for 10." in worker.silence.clause and "more than 10 s" in worker.silence.clause


def test_an_unknown_pattern_has_a_limit_of_its_own() -> None:
    worker = Watched(mean_s=None, silence_learning_s=60.0)
    worker.learning = True
    worker.work()
    assert not worker.quiet(59)
    assert worker.quiet(2)
    assert "learns" in worker.silence.clause


@pytest.mark.parametrize("seconds", [20.0, 3600.0])
def test_a_worker_that_has_finished_or_failed_is_never_silent(seconds: float) -> None:
    worker = Watched()
    worker.work()
    worker.quiet(12)
    worker.over = True
    assert not worker.quiet(min(seconds, 100.0))


def test_an_agent_that_was_stopped_does_not_take_everybody_for_silent() -> None:
    worker = Watched()
    worker.work()
    worker.quiet(5)
    assert not worker.poll(step_s=600.0)  # the agent, and maybe the job, was stopped for ten minutes
    assert not worker.quiet(3.5)
    worker.work()
    assert worker.silence.longest_s < 12
    worker.quiet(5)
    worker.poll(step_s=600.0)
    assert worker.quiet(30)
