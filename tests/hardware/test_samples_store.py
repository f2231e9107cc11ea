import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.hardware.store import Channel, SampleWriter, Series, busy_fraction, read_samples
from eroica.hardware.writer import CHANNELS_FILE, RECORD, SAMPLES_FILE

SECOND = 1_000_000_000


def _store(directory: Path) -> SampleWriter:
    writer = SampleWriter(directory)
    number = writer.declare(Channel("state", "7/8", "code", resolution_ns=1_000_000))
    for step in range(10):
        writer.add(number, SECOND + step * 1_000_000, ord("S"))
    writer.note("no NVIDIA channels: no driver on this host")
    return writer


def test_what_is_written_is_read_back_with_the_rate_really_achieved(tmp_path: Path) -> None:
    _store(tmp_path).close()
    samples = read_samples(tmp_path)
    state = samples.find("state", "7/8")
    assert state is not None
    assert state.t_ns.tolist() == [SECOND + step * 1_000_000 for step in range(10)]
    assert state.value.tolist() == [83.0] * 10
    assert state.channel.rate_hz == pytest.approx(1000)
    assert math.isnan(state.channel.capacity)
    assert samples.notes == ("no NVIDIA channels: no driver on this host",)
    assert samples.find("state", "7/9") is None


@pytest.mark.parametrize("cut", [1, RECORD.size - 1])
def test_a_record_cut_by_a_kill_is_left_out(tmp_path: Path, cut: int) -> None:
    _store(tmp_path).close()
    file = tmp_path / SAMPLES_FILE
    os.truncate(file, file.stat().st_size - cut)
    assert len(read_samples(tmp_path).series[0].t_ns) == 9


def test_a_store_has_a_limit_and_says_what_it_dropped(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, max_bytes=RECORD.size * 3 + 7)
    number = writer.declare(Channel("state", "1/1", "code"))
    for step in range(5):
        writer.add(number, SECOND + step, 82)
        writer.flush()
    writer.close()
    samples = read_samples(tmp_path)
    assert len(samples.series[0].t_ns) == 3
    assert samples.notes == ("2 samples dropped: the store's size limit was reached",)


HEADER = {"format": "eroica-samples", "version": 1}
LINE = {
    "channel": 0,
    "name": "cpu",
    "device": "1/1",
    "unit": "fraction",
    "capacity": 1.0,
    "resolution_ns": 1,
    "kind": "gauge",
    "scale": 1.0,
}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"format": "other", "version": 1}],
        [{"format": "eroica-samples", "version": 2}],
        [HEADER, {**LINE, "channel": 1}],
        [HEADER, {**LINE, "kind": "shell"}],
        [HEADER, {**LINE, "scale": float("inf")}],
        [HEADER, {**LINE, "resolution_ns": -1}],
        [HEADER, {**LINE, "resolution_ns": 10**40}],
        [HEADER, {**LINE, "capacity": "much"}],
        [HEADER, {"name": "cpu"}],
        [HEADER, [1, 2]],
        ["x"],
    ],
)
def test_a_foreign_list_of_channels_is_refused(tmp_path: Path, lines: list[object]) -> None:
    (tmp_path / SAMPLES_FILE).write_bytes(b"")
    (tmp_path / CHANNELS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=r"channels\.jsonl"):
        read_samples(tmp_path)


@pytest.mark.parametrize(
    "records",
    [
        [(3, SECOND, 1.0)],
        [(0, 2 * SECOND, 1.0), (0, SECOND, 1.0)],
        [(0, 0, 1.0)],
        [(0, SECOND, math.nan)],
        [(0, 5, 1e300)],
    ],
)
def test_impossible_samples_are_refused(tmp_path: Path, records: list[tuple[int, int, float]]) -> None:
    (tmp_path / CHANNELS_FILE).write_text(json.dumps(HEADER) + "\n" + json.dumps(LINE) + "\n")
    (tmp_path / SAMPLES_FILE).write_bytes(b"".join(RECORD.pack(*record) for record in records))
    with pytest.raises(InputError):
        read_samples(tmp_path)


@given(st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_samples_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    directory = tmp_path_factory.mktemp("store")
    (directory / CHANNELS_FILE).write_text(json.dumps(HEADER) + "\n" + json.dumps(LINE) + "\n")
    (directory / SAMPLES_FILE).write_bytes(data)
    try:
        read_samples(directory)
    except InputError:
        assert len(data) >= RECORD.size


def _series(edges: list[int], value: list[float]) -> Series:
    return Series(Channel("cpu", "1/1", "fraction"), edges[0], np.array(edges[1:], dtype=np.int64), np.array(value))


def test_means_weigh_by_time_and_say_nan_where_nothing_was_sampled() -> None:
    series = _series([100, 110, 140], [1.0, 0.0])
    assert series.mean_over([100, 105, 110, 0], [140, 115, 140, 120]) == pytest.approx([0.25, 0.5, 0.0, 0.5])
    assert np.isnan(series.mean_over([0, 141, 120], [90, 200, 120])).all()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1)), min_size=1, max_size=50),
    st.integers(1, 8),
)
def test_late_published_use_is_neither_lost_nor_more_than_a_core(steps: list[tuple[int, float]], every: int) -> None:
    """Twin: the true clock, published only at every n-th reading."""
    t = np.concatenate(([0], np.cumsum([length for length, _ in steps])))
    true = np.concatenate(([0.0], np.cumsum([length * share for length, share in steps])))
    shown = true[np.arange(len(true)) // every * every]
    fraction = busy_fraction(t, shown)
    assert (fraction >= 0).all()
    assert (fraction <= 1).all()
    assert float(fraction @ np.diff(t)) == pytest.approx(shown[-1], abs=1e-6 * max(1.0, float(t[-1])))
