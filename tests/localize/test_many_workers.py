"""What is written for a million workers gives, to the last bit, what its slow and obvious twin gives."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.localize import entries, peers, rule
from eroica.localize.excess import median_of_others
from eroica.localize.fleet import build_fleet
from eroica.localize.peers import BETA_FLOOR, DELTA, USE_FLOOR
from eroica.localize.roles import members_of
from eroica.model.pattern import FunctionKey
from eroica.model.series import decode_series, decode_together, encode_series
from eroica.model.worker import ProcessGroup
from eroica.settings import Settings
from support.fleet import FleetPlan, synthesize

SETTINGS = Settings()
FLOORS = np.array([BETA_FLOOR, USE_FLOOR, USE_FLOOR])


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
def test_boxes_find_the_distances_of_all_pairs(patterns: np.ndarray) -> None:
    sample = peers.sample_peers(len(patterns), 40)
    assert np.array_equal(peers.differential_distance(patterns, sample), all_pairs(patterns, sample))


def test_blocks_of_any_size_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = np.random.default_rng(3).random((500, 3))
    sample = peers.sample_peers(500, 100)
    monkeypatch.setattr(peers, "_BLOCK", 7)
    assert np.array_equal(peers.differential_distance(patterns, sample), all_pairs(patterns, sample))


def test_threads_flag_what_one_thread_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    pattern = np.abs(np.array([0.2, 0.8, 0.1]) + random.normal(0, 0.01, (6, 300, 3)))
    pattern[2, 17], pattern[4, 250] = (0.9, 0.2, 0.5), (0.9, 0.2, 0.5)
    critical, roles = pattern[:, :, 0] * 1e4, np.zeros(300, dtype=np.intp)
    behavior = rule.Behavior(
        keys=[FunctionKey(kind="compute", name=str(at)) for at in range(6)],
        pattern=pattern,
        critical_us=critical,
        peers_us=median_of_others(critical, roles),
        before_us=np.broadcast_to(np.nan, critical.shape),
        roles=roles,
        mean_iteration_us=1e4,
        has_accelerator=True,
    )

    def flagged() -> list[tuple[int, str, list[int]]]:
        found = rule.flag_functions(behavior, lambda function, workers: np.ones(workers.size), SETTINGS)
        return [(one.function, one.why, one.workers.tolist()) for one in found]

    alone = flagged()
    monkeypatch.setattr(rule, "_MANY_WORKERS", 1)
    assert alone == flagged() == [(2, "peers", [17]), (4, "peers", [250])]


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


@given(st.lists(st.sampled_from([0, 1, 5, 70_000]), max_size=30))
def test_members_of_each_role(roles: list[int]) -> None:
    found = members_of(np.array(roles, dtype=np.intp))
    expected = [[at for at, own in enumerate(roles) if own == role] for role in sorted(set(roles))]
    assert [members.tolist() for members in found] == expected


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
            assert found.rows[at] == row
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


def test_series_of_some_workers_are_rows_of_all() -> None:
    fleet = build_fleet(synthesize(FleetPlan(workers=6, iterations=12, seed=1)), SETTINGS)
    rows, some = range(len(fleet.keys)), np.array([4, 1])
    assert np.array_equal(fleet.series(rows, some), fleet.series(rows)[some])


def test_series_decode_together_as_one_by_one() -> None:
    values = [np.arange(5, dtype=np.float32) + at for at in range(3)]
    parts = [encode_series(array) for array in values]
    together = decode_together(parts, np.float32)
    assert together is not None
    assert np.array_equal(together, np.stack([decode_series(part, np.float32) for part in parts]))
    assert decode_together([*parts, b""], np.float32) is None
    assert decode_together([], np.float32) is None
    with pytest.raises(InputError):
        decode_together([parts[0][:-3]], np.float32)
