from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import integrate, stats

from made import log_of, pool_of, requests
from servegen.arrivals import draw_gaps, gap_cv
from servegen.errors import BadRequest
from servegen.families import Gaps, choose_family, ks_distance, log_likelihood, shape_of_cv
from servegen.fit import fit_log, write_fit
from servegen.logs import read_log
from servegen.pool import GAMMA, POISSON, WEIBULL, read_pool


def gaps_of(rng: np.random.Generator, process: int, shape: float, rate: float, clock_ns: int, size: int = 500) -> Gaps:
    times = np.cumsum(draw_gaps(rng, process, shape, size + 1)) / rate + rng.random()
    return Gaps.of(np.diff((times * 1e9).astype(np.int64) // clock_ns * clock_ns), clock_ns)


@pytest.mark.parametrize(("process", "shape"), [(POISSON, 1.0), (GAMMA, 0.3), (GAMMA, 3.0), (WEIBULL, 0.6)])
def test_probabilities_of_clock_steps_are_those_of_rounded_gaps(process: int, shape: float) -> None:
    """The slow twin: integrate the density times the chance that a gap of this size is seen as m steps."""
    step = 0.4
    law = {POISSON: stats.expon(), GAMMA: stats.gamma(shape, scale=1 / shape)}.get(process)
    law = law or stats.weibull_min(shape, scale=1 / stats.weibull_min(shape).mean())
    for m in (0, 1, 3, 7):
        seen = Gaps(np.array([m]), np.array([1]), step)
        slow, _ = integrate.quad(
            lambda x, m=m: law.pdf(x) * max(1 - abs(x / step - m), 0),
            max((m - 1) * step, 0),
            (m + 1) * step,
            points=[m * step],
            limit=200,
        )
        assert np.exp(log_likelihood(seen, process, shape, 1.0)) == pytest.approx(slow, rel=2e-3)


def test_fine_clocks_use_the_density() -> None:
    gaps = draw_gaps(np.random.default_rng(1), GAMMA, 2.0, 400)
    fine = Gaps.of((gaps * 1e9).astype(np.int64), 1)
    law = stats.gamma(2.0, scale=0.5 * float(fine.step * 0 + 1))
    scaled = fine.steps * fine.step
    expected = float(fine.counts @ law.logpdf(scaled)) + 400 * np.log(fine.step)
    assert log_likelihood(fine, GAMMA, 2.0, 1.0) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("clock_ns", [10**9, 10**6, 10**3])
@pytest.mark.parametrize(
    ("process", "shape"),
    [(POISSON, 1.0), (GAMMA, 0.25), (GAMMA, 1 / 9), (GAMMA, 4.0), (WEIBULL, 0.5)],
    ids=["exp", "g2", "g3", "g0.5", "w"],
)
def test_families_that_differ_are_told_apart_at_500_gaps(process: int, shape: float, clock_ns: int) -> None:
    rng = np.random.default_rng(3)
    rate = 0.1 if clock_ns == 10**9 else 9.0
    right = sum(choose_family(gaps_of(rng, process, shape, rate, clock_ns)).process == process for _ in range(40))
    assert right >= 36


def test_ties_of_a_coarse_clock_give_finite_values() -> None:
    """600 requests in 300 s, whole seconds."""
    rng = np.random.default_rng(0)
    family = choose_family(gaps_of(rng, GAMMA, 1.0, 2.0, 10**9, 600))
    assert np.isfinite([family.shape, family.gain, family.ks]).all()
    assert choose_family(Gaps.of(np.zeros(600, np.int64), 10**9)).decided_by == "too few"


def test_few_gaps_are_called_exponential_and_say_so() -> None:
    family = choose_family(gaps_of(np.random.default_rng(0), GAMMA, 0.1, 1.0, 1000, 29))
    assert (family.process, family.decided_by) == (POISSON, "too few")


def test_ks_is_small_for_the_right_family_and_large_for_another() -> None:
    gaps = gaps_of(np.random.default_rng(5), GAMMA, 0.25, 5.0, 1000, 5000)
    assert ks_distance(gaps, GAMMA, 0.25) < 0.03
    assert ks_distance(gaps, POISSON, 1.0) > 0.2


@pytest.mark.parametrize("process", [GAMMA, WEIBULL])
@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0, 6.0])
def test_a_shape_of_a_cv_has_that_cv(process: int, cv: float) -> None:
    assert gap_cv(process, shape_of_cv(process, cv)) == pytest.approx(cv, rel=1e-3)


def test_rate_and_cv_are_the_samples_own() -> None:
    table = requests(pool_of([[2.0] * 6, [5.0] * 6], [[0.25] * 6, [1.0] * 6]), hours=1, seed=2)
    log = log_of(table)
    found = fit_log(log)
    for c, name in enumerate(found.pool.clients):
        times = log.time_ns[log.client == log.clients.index(name)] / 1e9
        for w in range(1, 5):
            inside = times[(times + log.first_ns / 1e9) // 600 == w]
            gaps = np.diff(inside)
            assert found.pool.rate[c, w] == pytest.approx(len(inside) / 600, rel=0.005)
            assert found.pool.cv[c, w] == pytest.approx(gaps.std() / gaps.mean(), rel=0.005)


def test_a_fitted_pool_generates_the_same_rate_cv_and_lengths() -> None:
    """fit, generate, fit: parameters come back for clients with at least 10,000 times squared CV requests."""
    truth = pool_of([[30.0] * 6, [80.0] * 6], [[1.0] * 6, [1 / 4] * 6])
    first = fit_log(log_of(requests(truth, hours=1, seed=1))).pool
    again = fit_log(log_of(requests(first, hours=1, seed=2))).pool
    for c in range(2):
        assert again.rate[c].mean() == pytest.approx(truth.rate[c].mean(), rel=0.02)
        assert again.cv[c].mean() == pytest.approx(truth.cv[c].mean(), rel=0.05)
        for field in ("input_tokens", "output_tokens"):
            ours, theirs = truth.lengths[field][c], again.lengths[field][c]
            assert ours is not None and theirs is not None
            assert theirs.histograms[0].mean == pytest.approx(ours.histograms[0].mean, rel=0.01)


def test_small_clients_are_merged_and_told() -> None:
    table = requests(pool_of([[5.0] * 3, [0.004] * 3, [0.004] * 3]), hours=0.5, seed=1)
    found = fit_log(log_of(table), rest_share=0.01)
    assert found.pool.clients == ("a", "rest")
    assert any("merged" in note for note in found.notes)


def test_partly_covered_windows_count_covered_seconds_or_are_left_out() -> None:
    table = requests(pool_of([[4.0] * 4]), hours=2 / 3, seed=1)
    times = table["time_us"].to_numpy()
    cut = table.filter((times >= 100_000_000) & (times < 1_980_000_000))  # 500, 600, 600 and 180 seconds
    found = fit_log(log_of(cut))
    assert found.pool.windows == 3
    assert found.pool.rate[0].mean() == pytest.approx(4, rel=0.1)
    assert any("left out" in note for note in found.notes)


def test_a_log_shorter_than_half_a_window_is_fitted_and_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    seconds = np.sort(rng.integers(0, 300, 600))
    rows = "".join(f"{s},c,10,5\n" for s in seconds)
    (tmp_path / "log.csv").write_text("time,client,input_tokens,output_tokens\n" + rows)
    found = fit_log(read_log(tmp_path / "log.csv"))
    assert found.pool.rate[0, 0] == pytest.approx(2, rel=0.02)
    assert np.isfinite(found.pool.cv).all() and np.isfinite(found.pool.shape).all()
    assert any("steps of 1 s" in note for note in found.notes)
    assert any("covers only" in note for note in found.notes)


def test_a_fit_is_the_same_on_two_processes_and_keeps_its_evidence(tmp_path: Path) -> None:
    log = log_of(requests(pool_of([[2.0] * 3, [1.0] * 3]), hours=0.5, seed=1))
    one, two = fit_log(log), fit_log(log, processes=2)
    assert one.windows == two.windows
    write_fit(one, tmp_path / "pool")
    assert read_pool(tmp_path / "pool").clients == ("a", "b")
    evidence = pq.read_table(tmp_path / "pool" / "fit.parquet")
    assert {"requests", "ks", "decided_by"} <= set(evidence.column_names)
    assert evidence.num_rows == len(one.windows)


def test_a_log_of_one_moment_is_refused() -> None:
    log = log_of(requests(pool_of([[2.0]]), hours=0.1, seed=1).slice(0, 1))
    with pytest.raises(BadRequest, match="fewer than two"):
        fit_log(log)
