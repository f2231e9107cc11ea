"""A baseline window in which the job got slow ends where that began."""

from __future__ import annotations

import json
import random
from itertools import accumulate
from pathlib import Path

import pytest

from eroica.agent.window import find_rise, split_at_rise


def window(rng: random.Random, levels: list[tuple[float, int]], noise: float = 0.05) -> list[float]:
    return [level * rng.lognormvariate(0.0, noise) for level, count in levels for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("before", "times", "after"), [(10, 1.5, 5), (40, 1.4, 40), (30, 18.0, 4), (12, 2.0, 60)])
def test_a_rise_is_found_where_it_began(before: int, times: float, after: int, seed: int) -> None:
    assert find_rise(window(random.Random(seed), [(1.0, before), (times, after)])) == before


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "levels",
    [
        [(1.0, 60)],
        [(1.0, 30), (1.15, 30)],
        [(1.0, 20), (3.0, 3)],
        [(1.0, 20), (2.0, 10), (1.0, 20)],
        [(2.0, 3), (1.0, 40)],
        [(1.0, 5), (2.0, 40)],
    ],
    ids=["steady", "a little", "too short", "comes back", "slow at first", "no past"],
)
def test_what_is_no_lasting_rise_is_not_cut(levels: list[tuple[float, int]], seed: int) -> None:
    assert find_rise(window(random.Random(seed), levels, 0.1)) is None


def test_all_workers_of_a_host_end_at_the_same_iteration(tmp_path: Path) -> None:
    paths = []
    for rank, before in enumerate([20, 21, 20]):
        durations = window(random.Random(rank), [(5e7, before), (9e7, 41 - before)])
        path = tmp_path / f"{rank}.json"
        bounds = [round(end) for end in accumulate(durations, initial=1e9)]
        path.write_text(
            json.dumps({"boundaries_ns": bounds, "first_iteration": 90, "last_iteration": 131, "notes": ["kept"]})
        )
        paths.append(path)
    note = split_at_rise(paths)
    assert "iteration 19" in note
    for path in paths:
        record = json.loads(path.read_text())
        assert (len(record["boundaries_ns"]), record["last_iteration"]) == (20, 109)
        assert record["notes"] == ["kept", note]
    assert split_at_rise(paths) == ""
