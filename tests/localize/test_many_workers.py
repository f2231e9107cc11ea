"""What is written for a million workers gives, to the last bit, what its slow and obvious twin gives."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.localize import entries
from eroica.localize.excess import (
    excess_over_baseline,
    excess_over_peers,
    median_of_others,
)
from eroica.model.worker import ProcessGroup
from support.fleet import FleetPlan, synthesize


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.5, np.nan, 7.0]), st.integers(0, 3)), min_size=1, max_size=40))
def test_the_median_of_others_is_that_of_its_slow_twin(drawn: list[tuple[float, int]]) -> None:
    values, roles = np.array([value for value, _ in drawn]), np.array([role for _, role in drawn], dtype=np.intp)
    expected = np.full(len(values), np.nan)
    for worker in range(len(values)):
        others = np.sort(np.delete(values, worker)[np.delete(roles, worker) == roles[worker]])  # NaN last
        if others.size:
            expected[worker] = (others[(others.size - 1) // 2] + others[others.size // 2]) / 2
    both = median_of_others(np.stack([values, -values]), roles)
    assert np.array_equal(both[0], expected, equal_nan=True)
    assert np.array_equal(median_of_others(values, roles), expected, equal_nan=True)


@pytest.mark.parametrize("together", [1, 3, 256])
def test_entries_are_those_of_the_rows_one_by_one(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(entries, "_TOGETHER", together)
    patterns = synthesize(FleetPlan(workers=5, iterations=4, seed=2))
    patterns[3] = msgspec.structs.replace(patterns[3], functions=patterns[3].functions[:2])
    patterns[4] = msgspec.structs.replace(patterns[4], functions=())
    found = entries.gather_entries(patterns)
    assert list(found.keys) == sorted({row.key for pattern in patterns for row in pattern.functions})
    for worker, pattern in enumerate(patterns):
        rows = {row.key: row for row in pattern.functions}
        for function, key in enumerate(found.keys):
            row, at = rows.get(key), found.place[function, worker]
            if row is None:
                assert at == -1
                assert found.critical_us[function, worker] == found.count[function, worker] == 0
                assert not found.pattern[function, worker].any()
                continue
            per_iteration = 1e6 / 4
            assert found.tables[worker][at] == row
            assert found.critical_us[function, worker] == row.critical_s * per_iteration
            assert found.total_us[function, worker] == row.total_s * per_iteration
            assert found.error_us[function, worker] == row.beta_error * pattern.duration_s * per_iteration
            assert found.count[function, worker] == row.count / 4
            use = (row.mu, row.sigma) if row.resource_samples else (np.nan, np.nan)
            assert np.array_equal(found.pattern[function, worker], (row.beta, *use), equal_nan=True)


def test_very_many_like_groups_share_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = []
    for rank, pattern in enumerate(synthesize(FleetPlan(workers=8, iterations=4, seed=2))):
        group = ProcessGroup(name=f"pair {rank // 2}", description="tp", ranks=(rank - rank % 2, rank - rank % 2 + 1))
        rows = tuple(
            msgspec.structs.replace(row, key=msgspec.structs.replace(row.key, group=group.name))
            if row.key.kind == "collective"
            else row
            for row in pattern.functions
        )
        patterns.append(msgspec.structs.replace(pattern, functions=rows, process_groups=(group,)))
    names = {key.group for key in entries.gather_entries(patterns).keys if key.kind == "collective"}
    assert names == {f"pair {at}" for at in range(4)}
    monkeypatch.setattr(entries, "_MOST_CELLS", 31)
    joined = entries.gather_entries(patterns)
    (at,) = [at for at, key in enumerate(joined.keys) if key.kind == "collective"]
    assert joined.keys[at].group == "tp of 2"
    assert (joined.critical_us[at] > 0).all()


# --- excess ---


def test_a_jumpy_excess_is_weaker_than_a_steady_one() -> None:
    steady = np.vstack([np.full(20, 30.0) + np.tile([1.0, -1.0], 10), np.full((2, 20), 10.0)])
    jumpy = steady.copy()
    jumpy[0] = np.where(np.arange(20) == 7, 410.0, 10.0)
    roles = np.zeros(3)
    both = [excess_over_peers(time, roles) for time in (steady, jumpy)]
    assert both[0].excess_us[0] == both[1].excess_us[0] == 20
    assert both[0].strength[0] > 50
    assert both[1].strength[0] < 2


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
