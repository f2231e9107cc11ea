from __future__ import annotations

import json

import numpy as np
import pytest

from made import pool_of, requests, requests_table
from servegen.engine import Engine
from servegen.errors import BadRequest
from servegen.pool import Histogram, Pool
from servegen.size import Load, SizeOptions, fewest_instances, pooled, pooled_cv, size_workload, to_json
from servegen.workload import Slo, Workload

SMALL = Engine(
    fixed_s=0.01, per_sequence_s=0.001, per_prefill_token_s=0.0002, sequences=16, batch_tokens=256, blocks=2000
)
WORKLOAD = Workload(hours=0.1, rate=15.0, start_hour=12.0, seed=1)
SLO = Slo(ttft_s=3.0, tbt_s=0.2, quantile=0.95)


def test_the_naive_pool_has_the_same_rate_and_the_same_lengths_in_all(sample: Pool) -> None:
    naive = pooled(sample)
    assert naive.clients == ("all",)
    assert naive.rate[0] == pytest.approx(sample.rate.sum(axis=0))
    ours = requests(sample, hours=6, seed=1, start_hour=12)
    theirs = requests(naive, hours=6, seed=1, start_hour=12)
    assert theirs.num_rows == pytest.approx(ours.num_rows, rel=0.05)
    for field in ("input_tokens", "output_tokens"):
        assert np.mean(theirs[field].to_numpy()) == pytest.approx(np.mean(ours[field].to_numpy()), rel=0.05)


def test_the_pooled_cv_is_that_of_the_merged_stream() -> None:
    table = requests(pool_of([[4.0] * 3], [[0.25] * 3]), hours=0.5, seed=1)
    assert pooled_cv(table["time_us"].to_numpy()) == pytest.approx(2, rel=0.1)
    naive = pooled(pool_of([[4.0] * 3, [1.0] * 3]), 2.0)
    table = requests(naive, hours=0.5, seed=1)
    assert pooled_cv(table["time_us"].to_numpy()) == pytest.approx(2, rel=0.1)


def test_the_fewest_instances_are_enough_and_one_fewer_is_not() -> None:
    rng = np.random.default_rng(1)
    lengths = (rng.integers(1, most, 3000).tolist() for most in (300, 100))
    n, tried = fewest_instances(Load(np.sort(rng.random(3000) * 300), *lengths), SizeOptions(SMALL, SLO))
    assert tried[n][0] <= SLO.ttft_s and tried[n][1] <= SLO.tbt_s
    fewer = tried.get(n - 1)
    assert n == 1 or fewer is None or fewer[0] > SLO.ttft_s or fewer[1] > SLO.tbt_s
    assert n == 1 or (n - 1) in tried


def test_results_are_equal_on_one_and_two_processes(sample: Pool) -> None:
    log = requests_table([(i / 10, "x", 100, 20) for i in range(2000)])
    one = size_workload(WORKLOAD, sample, SizeOptions(SMALL, SLO, seeds=2), log)
    two = size_workload(WORKLOAD, sample, SizeOptions(SMALL, SLO, seeds=2, workers=2), log)
    assert one == two
    assert [need.generator for need in one] == ["servegen", "poisson", "gamma"] * 2 + ["log"]
    values = to_json(one, SizeOptions(SMALL, SLO), WORKLOAD, None)
    assert values["generators"]["servegen"]["against_log"] is not None
    assert json.loads(json.dumps(values))["schema"] == "servegen.size/1"


def test_ray_gives_equal_results(sample: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's own 15 starves its workers on a busy machine.
    options = SizeOptions(SMALL, SLO, seeds=1, generators=("servegen", "poisson"))
    expected = size_workload(WORKLOAD, sample, options)
    ray_options = SizeOptions(SMALL, SLO, seeds=1, generators=("servegen", "poisson"), workers=2, parallel="ray")
    assert size_workload(WORKLOAD, sample, ray_options) == expected


def test_bursty_clients_with_long_requests_need_more_than_naive_generators_say() -> None:
    """One calm client of short requests, one bursty client of long ones."""
    pool = pool_of([[10.0] * 3, [1.0] * 3], [[1.0] * 3, [1 / 64] * 3])
    short, long = Histogram.of(np.array([20.0]), np.ones(1)), Histogram.of(np.array([400.0]), np.ones(1))
    for field in ("input_tokens", "output_tokens"):
        ours = pool.lengths[field][0]
        assert ours is not None
        pool.lengths[field] = (type(ours)(ours.starts_s, (short,)), type(ours)(ours.starts_s, (long,)))  # type: ignore[index]
    needs = size_workload(Workload(hours=0.5, seed=1), pool, SizeOptions(SMALL, SLO, seeds=2))
    found = {g: np.median([n.instances for n in needs if n.generator == g]) for g in ("servegen", "poisson", "gamma")}
    assert found["servegen"] > found["gamma"] >= found["poisson"]


def test_limits_that_no_fleet_keeps_are_refused() -> None:
    pool = pool_of([[1.0]], inputs=Histogram.of(np.array([50_000.0]), np.ones(1)))
    with pytest.raises(BadRequest, match="prefill alone takes"):
        size_workload(Workload(hours=0.1, seed=1), pool, SizeOptions(SMALL, SLO, seeds=1))
