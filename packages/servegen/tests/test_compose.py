from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from made import pool_of, requests
from servegen import compose
from servegen.compose import plan, stream
from servegen.errors import BadRequest
from servegen.export import write_requests
from servegen.pool import Pool
from servegen.workload import Sessions, Workload


@pytest.mark.parametrize(
    "fields", [{}, {"sessions": Sessions(share=0.5)}, {"counts": "exact", "coupling": "comonotone"}]
)
def test_the_same_seed_gives_the_same_bytes_on_one_and_two_processes(
    sample: Pool, tmp_path: Path, fields: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "BLOCK_REQUESTS", 5000)
    workload = Workload(hours=2, seed=4, rate=10.0, start_hour=9, **fields)
    files = []
    for processes in (1, 2):
        files.append(tmp_path / f"{processes}.parquet")
        write_requests(stream(plan(workload, sample), processes), files[-1], "parquet")
    assert files[0].read_bytes() == files[1].read_bytes()


def test_another_seed_gives_other_requests(sample: Pool) -> None:
    assert not requests(sample, hours=0.2, seed=1, rate=5.0).equals(requests(sample, hours=0.2, seed=2, rate=5.0))


@pytest.mark.parametrize("sessions", [None, Sessions(share=0.4)])
def test_only_one_client_gives_exactly_its_subsequence(sample: Pool, sessions: Sessions | None) -> None:
    fields = {"hours": 1.5, "seed": 3, "rate": 8.0, "start_hour": 8.0, "sessions": sessions}
    everybody = requests(sample, **fields)
    alone = requests(sample, only_clients=["client-02"], **fields)
    theirs = [row for row in everybody.to_pylist() if row["client"] == "client-02"]
    assert alone.num_rows > 100
    assert alone.to_pylist() == theirs


def test_requests_are_sorted_and_the_total_rate_is_shared_by_the_pools_weights(reasoning: Pool) -> None:
    table = requests(reasoning, hours=2, seed=1, rate=40.0, start_hour=10)
    times = table["time_us"].to_numpy()
    assert (np.diff(times) >= 0).all()
    assert times[-1] < 7200_000_000
    assert table.num_rows == pytest.approx(40 * 7200, rel=0.05)
    window = reasoning.rate[:, 60:72]
    expected = (window / window.sum(axis=0)).mean(axis=1)
    client = table["client"].combine_chunks()
    seen = np.bincount(client.indices.to_numpy(), minlength=73) / table.num_rows
    assert np.abs(seen - expected).max() < 0.02


def test_a_rate_that_changes_is_followed_between_windows(sample: Pool) -> None:
    table = requests(sample, hours=1, seed=1, rate=[(0.0, 2.0), (900.0, 20.0), (1800.0, 0.0)], start_hour=10)
    seconds = table["time_us"].to_numpy() / 1e6
    assert (seconds < 900).sum() == pytest.approx(1800, rel=0.25)
    assert ((seconds >= 900) & (seconds < 1800)).sum() == pytest.approx(18_000, rel=0.15)
    assert (seconds >= 1800).sum() == 0


def test_no_active_window_is_silent_by_construction(reasoning: Pool) -> None:
    """At 1 request/s, expected counts match shares within sampling error over 200 seeds."""
    totals = np.zeros(len(reasoning.clients))
    made = plan(Workload(hours=0.5, rate=1.0, start_hour=13), reasoning)
    expected = sum(made.rates(w * 600.0) * 600 for w in range(3)) * 200
    for seed in range(200):
        table = requests(reasoning, hours=0.5, rate=1.0, start_hour=13, seed=seed)
        totals += np.bincount(table["client"].combine_chunks().indices.to_numpy(), minlength=len(totals))
    active = expected > 20
    assert (totals[active] > 0).all()
    z = (totals[active] - expected[active]) / np.sqrt(
        expected[active] * 6
    )  # squared CVs are about 6 at most on average
    assert np.abs(z).max() < 4
    assert totals.sum() == pytest.approx(expected.sum(), rel=0.03)


def test_beyond_the_pools_end_is_refused_unless_it_repeats(sample: Pool) -> None:
    with pytest.raises(BadRequest, match="--repeat"):
        plan(Workload(hours=2, start_hour=23), sample)
    table = requests(sample, hours=2, start_hour=23, rate=3.0, repeat=True)
    assert table["time_us"].to_numpy()[-1] > 3600_000_000


def test_windows_without_clients_are_told_and_not_filled() -> None:
    made = plan(Workload(hours=0.5, rate=5.0), pool_of([[1.0, 0.0, 1.0]]))
    assert "no client is active in 0.17 of 0.5 hours" in made.notes[0]
    times = pa.concat_tables(stream(made))["time_us"].to_numpy() / 1e6
    assert not ((times >= 600) & (times < 1200)).any()


def test_clients_without_histograms_are_left_out_and_told() -> None:
    pool = pool_of([[3.0], [1.0]])
    pool.lengths["input_tokens"] = (None, pool.lengths["input_tokens"][1])  # type: ignore[index]
    made = plan(Workload(hours=1 / 6, rate=2.0), pool)
    assert "left out 1 clients" in made.notes[0] and "75%" in made.notes[0]
    assert pa.concat_tables(stream(made)).num_rows == pytest.approx(1200, rel=0.15)


def test_an_unknown_client_is_refused(sample: Pool) -> None:
    with pytest.raises(BadRequest, match="'x'"):
        plan(Workload(only_clients=["x"]), sample)


def test_memory_does_not_hold_the_workload(sample: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "BLOCK_REQUESTS", 2000)
    sizes = [table.num_rows for table in stream(plan(Workload(hours=1, rate=30.0, start_hour=9), sample))]
    assert sum(sizes) == pytest.approx(108_000, rel=0.05)
    assert max(sizes) < 4000


def test_sessions_keep_the_rate_and_have_the_turns_that_were_asked_for() -> None:
    pool = pool_of([[20.0] * 12])
    settings = Sessions(share=0.5, turns=3.0, gap_s=20.0, gap_sigma=0.5, system_tokens=50)
    table = requests(pool, hours=2, seed=1, sessions=settings)
    assert table.num_rows == pytest.approx(20 * 7200, rel=0.03)
    session, turn = table["session"].to_numpy(), table["turn"].to_numpy()
    _, index, turns = np.unique(session, return_inverse=True, return_counts=True)
    several = turns[index] > 1
    assert several.mean() == pytest.approx(0.5, abs=0.03)
    assert turns[turns > 1].mean() == pytest.approx(3.0, rel=0.05)
    order = np.lexsort((turn, session))
    times = table["time_us"].to_numpy()[order] / 1e6
    follow = np.flatnonzero(turn[order] > 0)
    gaps = times[follow] - times[follow - 1]
    assert (gaps > 0).all()
    assert np.median(gaps) == pytest.approx(20, rel=0.1)
    inputs, outputs = table["input_tokens"].to_numpy()[order], table["output_tokens"].to_numpy()[order]
    assert (inputs[follow] > inputs[follow - 1] + outputs[follow - 1]).all()
    assert (table["shared_tokens"].to_numpy() == 50).all()


def test_a_conversation_ends_before_it_exceeds_the_longest_context() -> None:
    settings = Sessions(share=0.9, turns=8.0, gap_s=1.0, max_context=1000)
    table = requests(pool_of([[20.0]]), hours=1 / 6, seed=1, sessions=settings)
    assert (table["input_tokens"].to_numpy()[table["turn"].to_numpy() > 0] <= 1000).all()
