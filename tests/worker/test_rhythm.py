"""The rhythm: events in, completed iterations out."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.worker.hooks import Guest
from eroica.worker.rhythm import Completed, Rhythm


def play(events: Iterable[str], rhythm: Rhythm | None = None, start: int = 1) -> tuple[Rhythm, list[Completed]]:
    """Events "D", "O0", "O1", "S" ten nanoseconds apart."""
    rhythm = rhythm or Rhythm()
    done: list[Completed] = []
    for index, event in enumerate(events):
        now = start + 10 * index
        if event == "D":
            rhythm.loaded(now)
        elif event == "S":
            done += rhythm.announced(now)
        else:
            done += rhythm.stepped(int(event[1:]), now)
    return rhythm, done


def ids(done: list[Completed]) -> list[int]:
    return [iteration for iteration, _, _ in done]


@pytest.mark.parametrize(
    "iteration",
    ["D O0", "D D D D O0", "D O0 O1", "D O0 D O1", "D O0 D O0 D O0 O1", "O0", "O0 O1", "D O0 O0", "D O0 O1 O0"],
)
def test_every_repetition_counts_once_from_the_first_on(iteration: str) -> None:
    rhythm, done = play(iteration.split() * 40)
    assert ids(done) == list(range(1, 41))
    assert rhythm.iteration == 40
    assert rhythm.relearned == 0


def test_nothing_is_reported_before_ten_repetitions_and_all_of_them_then() -> None:
    rhythm, done = play(["D", "O0"] * 9)
    assert done == []
    assert rhythm.learning
    _, done = play(["D", "O0"], rhythm, start=181)
    assert ids(done) == list(range(1, 11))
    assert not rhythm.learning


def test_a_new_optimizer_object_goes_on_counting_where_the_old_one_stopped() -> None:
    rhythm, _ = play(["D", "O0"] * 50)
    _, done = play(["D", "O1"] * 30, rhythm, start=1001)
    assert ids(done) == list(range(51, 81))
    assert rhythm.relearned == 0  # iterations mean what they meant: what was fast before still says so


def test_after_200_steps_without_an_iteration_the_pattern_is_given_up() -> None:
    rhythm, _ = play(["D", "O0"] * 20)
    order = random.Random(0)
    for number in range(200):
        assert rhythm.stepped(order.randrange(1, 8), 1000 + number) == ()
        assert not rhythm.learning
    rhythm.stepped(1, 1200)
    assert rhythm.learning


def test_announced_iterations_win_over_everything_else() -> None:
    rhythm, done = play(["D", "O0", "S"] * 40)
    assert ids(done) == list(range(1, 41))
    assert not rhythm.learning


cycles = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(
    lambda order: [sorted(set(order), key=order.index).index(o) for o in order]  # numbered by first step
)
loads = st.lists(st.integers(0, 3), min_size=5, max_size=5)


@settings(max_examples=150)
@given(cycles, loads, st.integers(0, 20), st.integers(0, 3))
def test_workers_with_the_same_optimizer_steps_agree_whatever_they_load(
    cycle: list[int], loaded: list[int], every: int, extra: int
) -> None:
    """Rank 0 evaluates now and then with a loader, another rank does not."""
    rank_0, rank_1 = Rhythm(), Rhythm()
    counts: list[tuple[int, int]] = []
    now = 0
    for number in range(60):
        for position, optimizer in enumerate(cycle):
            now += 10
            for _ in range(1 + loaded[position] if position == 0 else loaded[position]):
                rank_0.loaded(now)
                rank_1.loaded(now)
            if position == 0 and every and number % every == 0:
                for _ in range(extra):
                    rank_0.loaded(now)
            rank_0.stepped(optimizer, now)
            rank_1.stepped(optimizer, now)
            counts.append((rank_0.iteration, rank_1.iteration))
    assert all(one == other for one, other in counts)
    assert rank_0.iteration >= 55


@given(st.lists(st.sampled_from(["D", "O0", "O0", "O0", "O1"]), max_size=400))
def test_whatever_happens_ids_count_up_by_one_and_durations_are_no_more_than_the_time(events: list[str]) -> None:
    rhythm, done = play(events)
    assert ids(done) == list(range(1, len(done) + 1))
    assert rhythm.iteration == len(done)
    assert all(duration >= 0 for _, _, duration in done)


class Parameter:
    pass


class Optimizer:
    def __init__(self, *parameters: object) -> None:
        self.param_groups = [{"params": list(parameters)}]


class OtherOptimizer(Optimizer):
    pass


class Unwilling:
    @property
    def param_groups(self) -> None:
        raise RuntimeError("not now")


def test_an_optimizer_made_anew_for_the_same_parameters_takes_the_place_of_the_one_that_is_gone() -> None:
    guest, first, second = Guest(), Parameter(), Parameter()
    kept = Optimizer(second)
    numbers = [guest._add_optimizer(kept)]
    for made in (Optimizer, Optimizer, OtherOptimizer, Optimizer):
        gone = made(first)
        numbers.append(guest._add_optimizer(gone))
        del gone
    assert numbers == [0, 1, 1, 2, 1]
    assert guest._add_optimizer(Optimizer(first, second)) == 3


def test_what_cannot_be_asked_for_its_parameters_is_numbered_by_itself() -> None:
    guest, odd = Guest(), [Optimizer(), Unwilling(), Unwilling(), OtherOptimizer()]
    assert [guest._add_optimizer(one) for one in odd] == [0, 1, 2, 3]
