from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made import pool_of
from servegen.errors import BadFile, BadRequest
from servegen.pool import GAMMA, WEIBULL, Histogram, Pool, read_pool, write_pool


def test_the_shipped_pool_has_the_published_facts(sample: Pool) -> None:
    active = sample.rate > 0
    shares = np.sort(sample.shares())[::-1]
    assert 0.14 <= shares[0] <= 0.52
    assert 0.43 <= shares[:5].sum() <= 0.77
    assert 0.63 <= shares[:10].sum() <= 0.93
    assert 0.30 <= active.mean() <= 0.48
    cv = sample.cv[active]
    assert 1.03 <= np.median(cv) <= 1.37
    assert 0.57 <= (cv > 1).mean() <= 0.90
    assert 0.70 <= (sample.process[active] == GAMMA).mean() <= 0.84
    assert (sample.process[active] == WEIBULL).any()
    assert sample.complete().all()


def test_a_written_pool_reads_the_same(sample: Pool, tmp_path: Path) -> None:
    write_pool(sample, tmp_path / "p")
    again = read_pool(tmp_path / "p")
    assert again.clients == sample.clients
    assert again.span_s == sample.span_s
    for name in ("rate", "cv", "process", "shape"):
        assert (getattr(again, name) == getattr(sample, name)).all()
    for field, column in sample.lengths.items():
        for ours, theirs in zip(column, again.lengths[field], strict=True):
            assert ours is not None and theirs is not None
            assert all(
                np.allclose(a.cumulative, b.cumulative) for a, b in zip(ours.histograms, theirs.histograms, strict=True)
            )


def test_pools_with_a_prefix_are_read_and_incomplete_clients_are_known(reasoning: Pool) -> None:
    assert len(reasoning.clients) == 73
    assert reasoning.without_lengths() == (0, 0.0)


def written(tmp_path: Path, part: str, change: dict[str, object], row: int = 1) -> Path:
    """A pool's folder in which one value of one file was changed."""
    folder = tmp_path / "bad"
    write_pool(pool_of([[1.0, 2.0], [3.0, 4.0]]), folder)
    table = pq.read_table(folder / f"{part}.parquet")
    for name, value in change.items():
        values = table[name].to_pylist()
        values[row] = value
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    pq.write_table(table, folder / f"{part}.parquet")
    return folder


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("arrivals", "rate", -1.0),
        ("arrivals", "rate", float("nan")),
        ("arrivals", "cv", float("inf")),
        ("arrivals", "shape", 0.0),
        ("arrivals", "start_s", 601),
        ("arrivals", "start_s", 0),
        ("arrivals", "start_s", 2**40),
        ("arrivals", "process", "Pareto"),
        ("arrivals", "client", None),
        ("lengths", "prob", -0.1),
        ("lengths", "value", -3.0),
        ("lengths", "value", 1e12),
        ("lengths", "field", "colour"),
    ],
)
def test_a_bad_value_is_refused_with_file_row_and_field(tmp_path: Path, part: str, field: str, value: object) -> None:
    folder = written(tmp_path, part, {field: value})
    with pytest.raises(BadFile) as caught:
        read_pool(folder)
    assert caught.value.path.name == f"{part}.parquet"
    assert caught.value.field == field
    assert caught.value.row == 2
    assert len(str(caught.value).splitlines()) == 1


def test_probabilities_must_add_up(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="add up"):
        read_pool(written(tmp_path, "lengths", {"prob": 0.5}))


def test_a_missing_file_or_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        read_pool(tmp_path / "nothing")
    write_pool(pool_of([[1.0]]), tmp_path / "p")
    table = pq.read_table(tmp_path / "p" / "arrivals.parquet")
    pq.write_table(table.drop_columns(["shape"]), tmp_path / "p" / "arrivals.parquet")
    with pytest.raises(BadFile, match="'shape'"):
        read_pool(tmp_path / "p")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intact")
    write_pool(pool_of([[1.0, 2.0], [3.0, 4.0]]), folder)
    return folder


@given(seed=st.integers(0, 2**32), cut=st.booleans())
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_read_or_refused_but_never_crash(intact: Path, seed: int, cut: bool) -> None:
    rng = random.Random(seed)
    folder = intact / "damaged"
    folder.mkdir(exist_ok=True)
    for name in ("arrivals.parquet", "lengths.parquet"):
        data = bytearray((intact / name).read_bytes())
        if rng.random() < 0.7:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            data = data[: rng.randrange(len(data))] if cut else data
        (folder / name).write_bytes(bytes(data))
    try:
        read_pool(folder)
    except BadFile as error:
        assert ".parquet" in str(error)


def test_filters_keep_what_they_say(sample: Pool) -> None:
    kept = sample.filtered(least_share=0.05)
    assert 0 < len(kept.clients) < len(sample.clients)
    assert sample.filtered(clients=["client-03"]).clients == ("client-03",)
    with pytest.raises(BadRequest, match="no client 'nobody'"):
        sample.filtered(clients=["nobody"])


def test_mixing_histograms_keeps_the_mean() -> None:
    a, b = (
        Histogram.of(np.array([1.0, 3.0]), np.array([1.0, 1.0])),
        Histogram.of(np.array([3.0, 9.0]), np.array([3.0, 1.0])),
    )
    mixed = Histogram.mixed([(a, 1.0), (b, 3.0)])
    assert mixed.mean == pytest.approx((a.mean + 3 * b.mean) / 4)
    assert mixed.values.tolist() == [1.0, 3.0, 9.0]
