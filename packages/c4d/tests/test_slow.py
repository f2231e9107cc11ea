"""Delays of ways, beside their past and beside each other, tell which of them make a job slow."""

from dataclasses import replace
from itertools import permutations

import pytest

from eroica_c4d.records import Place
from eroica_c4d.slow import Slow, Usual, find_slow, usual_of
from eroica_c4d.stretch import Cell, CellReading, Stretch

CELLS = list(permutations(("node0", "node1", "node2", "node3"), 2))
QUICK = CellReading(delay_s=0.0008, bytes_per_s=2e6, busy=0.05, held=0.0)
SLOW = CellReading(delay_s=0.06, bytes_per_s=1e6, busy=0.6, held=0.0)
WAY = ("node1", "node2")


def stretch(iteration_s: float = 0.1, cells: dict[Cell, CellReading] | None = None) -> Stretch:
    return Stretch(seconds=8, iteration_s=iteration_s, cells=dict.fromkeys(CELLS, QUICK) | (cells or {}))


USUAL = usual_of([stretch(), stretch()])


def find(now: Stretch) -> Slow | None:
    assert isinstance(USUAL, Usual)
    return find_slow(now, USUAL, 0.15)


def test_a_connection_whose_bytes_wait_makes_a_job_slow() -> None:
    found = find(stretch(0.2, {WAY: SLOW}))
    assert found is not None and found.places == (Place(kind="connection", hosts=WAY),)
    assert found.gain == pytest.approx(0.5) and found.hot[WAY] == pytest.approx(0.0592)


def test_a_job_that_is_slower_for_another_reason_is_left_to_windows() -> None:
    assert find(stretch(0.2)) is None


def test_a_job_as_fast_as_ever_is_not_slow_whatever_differs() -> None:
    assert find(stretch(0.1, {WAY: SLOW})) is None


def test_more_bytes_that_wait_are_no_slow_way() -> None:
    assert find(stretch(0.2, {WAY: replace(SLOW, bytes_per_s=30e6)})) is None  # 50 MB/s while under way, 40 before


@pytest.mark.parametrize(("iterations", "slow"), [(2, False), (30, True)])
def test_few_iterations_do_not_tell_that_a_job_is_slow(iterations: int, slow: bool) -> None:
    assert (find(replace(stretch(0.14, {WAY: SLOW}), iterations=iterations)) is not None) == slow


def test_where_all_ways_are_slow_alike_no_place_is_named() -> None:
    slow = replace(SLOW, delay_s=0.008)
    assert find(stretch(0.2, dict.fromkeys(CELLS, slow))) is None
    found = find(stretch(0.2, dict.fromkeys(CELLS, slow) | {CELLS[0]: replace(slow, delay_s=0.2)}))
    assert found is not None and found.places == (Place(kind="connection", hosts=CELLS[0]),)


def test_without_a_past_nothing_is_slow() -> None:
    assert usual_of([]) is None and usual_of([Stretch(seconds=8, iteration_s=None)]) is None
