from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made import log_of, pool_of, requests
from servegen.compare import SCHEMA, compare_log
from servegen.errors import BadRequest
from servegen.files import write_json
from servegen.fit import fit_log
from servegen.pool import Histogram, Pool


def trial(pool: Pool, seed: int, change: str | None, hour: float = 10.0) -> tuple[str, list[tuple[str, str]]]:
    """The client that was changed, and what is named."""
    rng = np.random.default_rng(seed)
    log = log_of(requests(pool, hours=1, seed=seed, start_hour=hour))
    counts = np.bincount(log.client, minlength=len(log.clients))
    victim = int(rng.choice(np.flatnonzero(counts >= 300)))
    name = log.clients[victim]
    if change == "rate":
        row = pool.clients.index(name)
        more = replace(pool, rate=pool.rate * np.where(np.arange(len(pool.clients)) == row, 3.0, 1.0)[:, None])
        log = log_of(requests(more, hours=1, seed=seed, start_hour=hour))
    elif change:
        values = getattr(log, change)
        log = replace(log, **{change: np.where(log.client == victim, values * 2, values)})
    found = compare_log(log, pool, start_hour=hour)
    return name, [(f.client, f.quantity) for f in found.changes]


@pytest.mark.parametrize("change", ["rate", "input_tokens", "output_tokens"])
def test_the_changed_client_and_quantity_are_named(sample: Pool, change: str) -> None:
    right = 0
    for seed in range(10):
        name, named = trial(sample, seed, change)
        right += named == [(name, change)]
    assert right >= 9


def test_nobody_is_named_in_unchanged_traffic(sample: Pool) -> None:
    assert sum(bool(trial(sample, seed, None)[1]) for seed in range(20)) <= 1


def test_a_change_has_its_size_with_an_interval_and_its_weight(tmp_path: Path) -> None:
    pool = pool_of([[2.0] * 6, [2.0] * 6])
    faster = replace(pool, rate=pool.rate * np.array([[3.0], [1.0]]))
    found = compare_log(log_of(requests(faster, hours=1, seed=1)), pool)
    assert found.verdict == "demand changed"
    (change,) = found.changes
    assert (change.client, change.quantity) == ("a", "rate")
    assert change.low < 3 < change.high
    assert change.factor == pytest.approx(3, rel=0.1)
    assert change.extra_tokens_per_s == pytest.approx(4 * 251, rel=0.15)
    write_json(found, tmp_path / "c.json")
    values = json.loads((tmp_path / "c.json").read_text())
    assert values["schema"] == SCHEMA
    assert values["changes"][0]["client"] == "a"


def test_a_bursty_client_is_judged_by_its_own_dispersion() -> None:
    """A quarter more requests are news from a Poisson client, and none from one of CV 6."""
    calm, bursty = pool_of([[1.0] * 6]), pool_of([[1.0] * 6], [[1 / 36] * 6])
    table = requests(pool_of([[1.27] * 6]), hours=1, seed=1)
    assert compare_log(log_of(table), calm).changes
    assert not compare_log(log_of(table), bursty).changes


def test_a_form_that_changes_with_the_same_mean_is_named() -> None:
    pool = pool_of([[2.0] * 6], outputs=Histogram.of(np.arange(50.0, 151.0), np.ones(101)))
    two_humps = pool_of([[2.0] * 6], outputs=Histogram.of(np.array([52.0, 148.0]), np.array([0.42, 0.58])))
    found = compare_log(log_of(requests(two_humps, hours=1, seed=1)), pool)
    assert [(f.client, f.quantity) for f in found.changes] == [("a", "output_tokens")]


def test_a_new_client_and_a_silent_one_are_named() -> None:
    pool = pool_of([[2.0] * 6, [2.0] * 6])
    log = log_of(requests(pool, hours=1, seed=1))
    renamed = replace(log, clients=("a", "newcomer"))
    named = {(f.client, f.factor is None) for f in compare_log(renamed, pool).changes}
    assert named == {("b", False), ("newcomer", True)}


def test_a_log_lies_on_the_same_time_of_day() -> None:
    pool = replace(pool_of([[1.0] * 72 + [6.0] * 72]), origin="2026-03-01T00:00:00+00:00")
    evening = requests(pool, hours=1, seed=1, start_hour=15)
    log = replace(log_of(evening), first_ns=(20_520 * 86_400 + 15 * 3600) * 10**9)  # another day, 15:00
    found = compare_log(log, pool)
    assert found.aligned == "same time of day"
    assert not found.changes
    assert compare_log(replace(log, first_ns=log.first_ns - 12 * 3600 * 10**9), pool).changes


def test_a_log_that_does_not_fit_on_the_pool_is_refused() -> None:
    log = log_of(requests(pool_of([[1.0] * 12]), hours=2, seed=1))
    with pytest.raises(BadRequest, match="--to"):
        compare_log(log, pool_of([[1.0] * 3]))
    with pytest.raises(BadRequest, match="--align start"):
        compare_log(log, pool_of([[1.0] * 12]), "time-of-day")


def test_a_log_is_as_usual_against_the_pool_that_was_fitted_to_another_one() -> None:
    truth = pool_of([[2.0] * 12, [1.0] * 12, [0.5] * 12], [[0.5] * 12, [1.0] * 12, [0.3] * 12])
    alarms = 0
    for seed in range(10):
        fitted = fit_log(log_of(requests(truth, hours=2, seed=seed))).pool
        alarms += bool(compare_log(log_of(requests(truth, hours=2, seed=seed + 100)), fitted).changes)
    assert alarms <= 1
