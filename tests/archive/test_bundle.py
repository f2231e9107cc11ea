"""Patterns of one window in one file: what is added is there, and damage costs what is damaged."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from eroica.archive.bundle import BUNDLE_FILE, Bundle
from eroica.archive.forget import forget
from eroica.archive.load import count_patterns, looks_saved, open_saved, open_window, read_patterns
from eroica.archive.store import save_patterns, write_json
from eroica.errors import InputError
from eroica.model.pattern import WorkerPattern
from eroica.wire.codec import encode_record
from support import FleetPlan, synthesize, synthesize_window


@pytest.fixture(scope="module")
def patterns() -> list[WorkerPattern]:
    return list(synthesize(FleetPlan(iterations=4), window_id=1))


def filled(path: Path, patterns: list[WorkerPattern]) -> Path:
    bundle = Bundle(path / BUNDLE_FILE, append=True)
    for pattern in patterns:
        bundle.add(pattern.worker.global_rank, encode_record(pattern))
    bundle.close()
    return path / BUNDLE_FILE


def test_what_is_added_is_read(tmp_path: Path, patterns: list[WorkerPattern]) -> None:
    file = filled(tmp_path / "patterns", patterns)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with Bundle(file) as bundle:
        assert bundle.ranks == [0, 1, 2, 3]
        assert [bundle.read(rank) for rank in bundle.ranks] == [encode_record(pattern) for pattern in patterns]


def test_it_goes_on_where_it_was_cut_off_and_the_later_pattern_of_a_worker_counts(
    tmp_path: Path, patterns: list[WorkerPattern]
) -> None:
    file = filled(tmp_path, patterns[:2])
    whole = file.stat().st_size
    with file.open("ab") as more:  # as a collector that is killed leaves it
        more.write(b"\x02\x00\x00\x00\xff\x00")
    bundle = Bundle(file, append=True)
    assert bundle.ranks == [0, 1] and file.stat().st_size == whole
    bundle.add(2, encode_record(patterns[2]))
    bundle.add(0, encode_record(patterns[3]))
    bundle.close()
    with Bundle(file) as again:
        assert again.ranks == [0, 1, 2]
        assert again.read(0) == encode_record(patterns[3]) and again.read(2) == encode_record(patterns[2])


def test_a_damaged_pattern_costs_its_worker(tmp_path: Path, patterns: list[WorkerPattern]) -> None:
    file = filled(tmp_path, patterns)
    with Bundle(file) as bundle:
        start, size = bundle.stamp(1)
    data = bytearray(file.read_bytes())
    data[start + size // 2] ^= 1
    file.write_bytes(data)
    with Bundle(file) as bundle:
        with pytest.raises(InputError, match="damaged"):
            bundle.read(1)
        assert bundle.read(2) == encode_record(patterns[2])


@pytest.mark.parametrize("content", [b"something else", os.urandom(400)])
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / BUNDLE_FILE).write_bytes(content)
    for append in (False, True):
        with pytest.raises(InputError, match="no file of patterns"):
            Bundle(tmp_path / BUNDLE_FILE, append=append)
    os.mkfifo(tmp_path / "pipe.patterns")
    with pytest.raises(InputError, match="no regular file"):
        Bundle(tmp_path / "pipe.patterns")
    assert (tmp_path / BUNDLE_FILE).read_bytes() == content


def test_a_file_that_cannot_be_written_is_as_it_was(
    tmp_path: Path, patterns: list[WorkerPattern], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle(tmp_path / BUNDLE_FILE, append=True)
    bundle.add(0, encode_record(patterns[0]))
    whole, write = (tmp_path / BUNDLE_FILE).read_bytes(), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:30], at))  # then the disk is full
    with pytest.raises(OSError, match="no room"):
        bundle.add(1, encode_record(patterns[1]))
    assert (tmp_path / BUNDLE_FILE).read_bytes() == whole
    monkeypatch.undo()
    bundle.add(1, encode_record(patterns[1]))
    assert [bundle.read(rank) for rank in (0, 1)] == [encode_record(pattern) for pattern in patterns[:2]]
    bundle.close()


def test_a_window_with_one_file_is_opened_like_one_with_many(tmp_path: Path, patterns: list[WorkerPattern]) -> None:
    directory = tmp_path / "windows" / "1"
    write_json(directory / "window.json", synthesize_window(patterns))
    file = filled(directory / "patterns", patterns)
    (tmp_path / "windows" / "2").mkdir()
    saved = open_window(directory)
    assert count_patterns(saved) == 4 and looks_saved(file) and looks_saved(file.parent)
    for place in (directory, file.parent, file):
        opened = open_saved(place)
        _, found, notes = read_patterns(opened)  # type: ignore[arg-type]
        assert list(found) == patterns and not notes
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    _, found, notes = read_patterns(saved)
    assert len(found) == 3 and notes == ("1 pattern was left out: worker 3: it is damaged in the file",)
    forget(tmp_path)
    assert not directory.exists()


def test_a_worker_that_has_a_file_by_itself_is_not_read_twice(tmp_path: Path, patterns: list[WorkerPattern]) -> None:
    save_patterns(tmp_path / "windows" / "1", synthesize_window(patterns), patterns[:2])
    filled(tmp_path / "windows" / "1" / "patterns", patterns)  # as of a collector that was killed in between
    _, found, notes = read_patterns(open_window(tmp_path / "windows" / "1"))
    assert [pattern.worker.global_rank for pattern in found] == [0, 1, 2, 3] and not notes
