"""The shared-memory record between worker and agent."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.wire import beat
from eroica.wire.beat import MAGIC


@pytest.fixture
def pair(tmp_path: Path) -> tuple[beat.BeatWriter, beat.BeatReader]:
    writer = beat.BeatWriter.create(tmp_path, {"global_rank": 3})
    return writer, beat.BeatReader.open(writer.path)


def test_what_the_worker_writes_the_agent_reads(pair: tuple[beat.BeatWriter, beat.BeatReader]) -> None:
    writer, reader = pair
    assert reader.identity == {"global_rank": 3} and reader.beat() is None and reader.result() == beat.NO_RESULT
    for iteration in range(1, 3001):
        writer.beat(iteration, 10 * iteration, 100 + iteration, beat.STEADY, 1)
    writer.touch(40_000)
    assert reader.beat() == beat.Beat(3000, 30_000, 40_000, beat.STEADY, 1)
    assert reader.durations(2990, 3000) == [100 + i for i in range(2991, 3001)]
    oldest = reader.durations(0, 3000)
    assert len(oldest) == beat.RING_SLOTS - 1 and oldest[-1] == 3100


def test_an_order_is_seen_once_and_its_answer_comes_back(pair: tuple[beat.BeatWriter, beat.BeatReader]) -> None:
    writer, reader = pair
    order = beat.Order(4, beat.WINDOW, 0, 10, 20, 999, 100, "/scratch/ä")
    assert writer.new_order() is None
    reader.give(order)
    assert writer.new_order() == order and writer.new_order() is None
    answer = beat.Result(4, beat.MISSED, beat.WINDOW, 10, 20, 5, 6, 7, "too late " * 40)
    writer.answer(answer)
    read = reader.result()
    assert read[:8] == answer[:8] and answer.note.startswith(read.note) and len(read.note) <= 192


def test_a_second_agent_goes_on_where_the_first_one_stopped(pair: tuple[beat.BeatWriter, beat.BeatReader]) -> None:
    writer, reader = pair
    reader.give(beat.Order(1, beat.PROBE, 0, 1, 2, 0, 0, "a"))
    assert writer.new_order() is not None
    restarted = beat.BeatReader.open(writer.path)
    restarted.give(beat.Order(2, beat.PROBE, 0, 1, 2, 0, 0, "b"))
    seen = writer.new_order()
    assert seen is not None and seen.window_id == 2


def test_a_record_caught_in_the_middle_is_not_believed(pair: tuple[beat.BeatWriter, beat.BeatReader]) -> None:
    writer, reader = pair
    writer.beat(1, 1, 1, beat.STEADY, 0)
    struct.pack_into("<Q", writer._memory, beat._BEAT_AT, 99)  # the writer has begun the next one
    assert reader.beat() is None


def test_foreign_short_linked_and_garbled_files_are_refused(tmp_path: Path) -> None:
    short = tmp_path / "1.beat"
    short.write_bytes(b"EROICA01")
    garbage = tmp_path / "2.beat"
    garbage.write_bytes(os.urandom(beat.FILE_BYTES))
    lying = tmp_path / "3.beat"
    lying.write_bytes(MAGIC + struct.pack("<I", 2**31) + bytes(beat.FILE_BYTES))
    no_json = tmp_path / "4.beat"
    no_json.write_bytes(MAGIC + struct.pack("<I", 5) + b"{{{{{" + bytes(beat.FILE_BYTES))
    link = tmp_path / "5.beat"
    link.symlink_to(garbage)
    for path in (short, garbage, lying, no_json):
        with pytest.raises(ValueError, match=r"beat file|identity"):
            beat.BeatReader.open(path)
    with pytest.raises(OSError):
        beat.BeatReader.open(link)


def test_an_identity_larger_than_its_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorten"):
        beat.BeatWriter.create(tmp_path, {"x": "y" * 5000})


@given(st.binary(min_size=64, max_size=64))
def test_any_bytes_in_shared_memory_are_read_without_failing(data: bytes) -> None:
    import mmap

    memory = mmap.mmap(-1, beat.FILE_BYTES)
    memory[:] = data * (beat.FILE_BYTES // len(data))
    reader = beat.BeatReader(Path("x"), memory, {})
    reader.beat()
    reader.result()
    assert len(reader.durations(0, 10**6)) <= beat.RING_SLOTS
