"""Several files at a time, in processes that may die."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from written_traces import write

from eroica.offline import readers
from eroica.offline.cores import cores, parse_quota
from eroica.offline.discover import Source, discover
from eroica.offline.reading import Silent, read_all
from eroica.settings import Settings

FRAGILE = """
import os, signal
import eroica.offline.__main__ as reader

read_one = reader.read_one

def read(path, rank, settings, progress, *more):
    if "killed" in path.name:
        os.kill(os.getpid(), signal.SIGKILL)
    if "bug" in path.name:
        raise RuntimeError("never seen before")
    if "chatty" in path.name:
        print("hello from some library", flush=True)
    return read_one(path, rank, settings, progress, *more)

reader.read_one = read
reader.main()
"""
TWO = Settings(readers=2)


@pytest.fixture
def helpers() -> Callable[[], set[int]]:
    """Processes that the test has begun and not ended; other tests of this run may keep a server."""
    before = {child.pid for child in psutil.Process().children()}
    return lambda: {child.pid for child in psutil.Process().children()} - before


@pytest.mark.parametrize(
    ("text", "granted"), [("max 100000\n", None), ("250000 100000\n", 2.5), ("", None), ("1 0", None), ("x y", None)]
)
def test_a_quota_is_read_from_cpu_max(text: str, granted: float | None) -> None:
    assert parse_quota(text) == granted and cores() >= 1


class Watched(Silent):
    def __init__(self) -> None:
        self.files = self.size = self.read = 0
        self.finished: list[Source] = []

    def begin(self, files: int, size: int) -> None:
        self.files, self.size = files, size

    def advance(self, size: int) -> None:
        self.read += size

    def done(self, source: Source) -> None:
        self.finished.append(source)


def sources(directory: Path) -> tuple[Source, ...]:
    return discover([directory]).traces


def test_processes_read_what_one_process_reads(tmp_path: Path, helpers: Callable[[], set[int]]) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json.gz", rank=rank, load_us=1_000.0 * (1 + rank))
    beside, here = (read_all(sources(tmp_path), Settings(readers=width)) for width in (2, 1))
    assert [one.rank for one in beside] == [0, 1, 2]
    for one, other in zip(beside, here, strict=True):
        assert one.pattern is not None and other.pattern is not None
        assert one.pattern.functions == other.pattern.functions and one.path == other.path
        assert one.steps == other.steps and one.start_ns == other.start_ns
    assert not helpers()


def test_progress_adds_up_to_the_size_of_the_files(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json", rank=rank, steps=3 + rank)
    for width in (1, 2):
        watched = Watched()
        read_all(sources(tmp_path), Settings(readers=width), watched)
        assert watched.read == watched.size == sum(path.stat().st_size for path in tmp_path.iterdir())
        assert watched.files == 3 and len(watched.finished) == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [("killed_rank1.json", "was killed, perhaps because memory"), ("bug_rank1.json", "never seen before")],
)
def test_a_reader_that_dies_costs_only_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str, helpers: Callable[[], set[int]]
) -> None:
    monkeypatch.setattr(readers, "isolated", lambda _module: [sys.executable, "-c", FRAGILE])
    for rank in (0, 2, 3):
        write(tmp_path / f"rank{rank}.json", rank=rank)
    write(tmp_path / name, rank=1)
    summaries = {Path(one.path).name: one for one in read_all(sources(tmp_path), TWO)}
    assert words in summaries[name].error and summaries[name].pattern is None
    assert [one.pattern is not None for key, one in sorted(summaries.items()) if key != name] == [True] * 3
    assert not helpers()


def test_what_somebody_prints_in_a_reader_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "isolated", lambda _module: [sys.executable, "-c", FRAGILE])
    for rank in (0, 1):
        write(tmp_path / f"chatty_rank{rank}.json", rank=rank)
    assert all(one.pattern is not None for one in read_all(sources(tmp_path), TWO))


def test_a_long_word_behind_a_short_one_is_too_much_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both come in one read now and then: progress, and what follows it."""
    monkeypatch.setattr(readers, "MOST_FRAME_BYTES", 100)
    told: list[int] = []
    reader, (voice, mouth) = readers.Reader(Settings()), os.pipe()
    source = Source(path=tmp_path / "rank0.json", size=0, rank=0, place="")
    reader._task = (0, source)
    monkeypatch.setattr(readers.Reader, "voice", voice)
    progress = b"p" + readers.COUNT.pack(7)
    os.write(mouth, readers.LENGTH.pack(len(progress)) + progress + readers.LENGTH.pack(5000) + b"s" * 5000)
    number, summary = reader.hear(told.append)
    assert (number, told) == (0, [7])
    assert summary is not None and "says more than 100 bytes" in summary.error
    os.close(voice)
    os.close(mouth)


def test_a_reader_that_says_too_much_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helpers: Callable[[], set[int]]
) -> None:
    monkeypatch.setattr(readers, "MOST_FRAME_BYTES", 100)
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", rank=rank)
    assert all("says more than 100 bytes" in one.error for one in read_all(sources(tmp_path), TWO))
    assert not helpers()


def test_a_damaged_file_costs_only_itself(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", rank=0)
    (tmp_path / "rank1.pt.trace.json").write_bytes(b"")
    (tmp_path / "rank2.pt.trace.json.gz").write_bytes(b"\x1f\x8b\x08garbage")
    summaries = read_all(sources(tmp_path), TWO)
    assert [bool(one.error) for one in summaries] == [False, True, True]
    assert all("rank" in one.error for one in summaries[1:])


def test_names_that_are_no_text_can_be_read(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}\udcff\n.json", rank=rank)
    assert all(one.pattern is not None for one in read_all(sources(tmp_path), TWO))
