"""Several files at a time, in processes that may die."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from written_traces import write

from eroica.offline import reading
from eroica.offline.discover import Source, discover
from eroica.offline.reading import read_all
from eroica.settings import Settings

FRAGILE = """
import os, signal
import eroica.offline.reading as reader

read_one = reader.read_one

def read(path, rank, settings, *more):
    if "killed" in path.name:
        os.kill(os.getpid(), signal.SIGKILL)
    if "bug" in path.name:
        raise RuntimeError("never seen before")
    if "chatty" in path.name:
        print("hello from some library", flush=True)
    return read_one(path, rank, settings, *more)

reader.read_one = read
reader.main()
"""
TWO = Settings(readers=2)


@pytest.fixture
def helpers() -> Callable[[], set[int]]:
    """Processes that the test has begun and not ended; other tests of this run may keep a server."""
    before = {child.pid for child in psutil.Process().children()}
    return lambda: {child.pid for child in psutil.Process().children()} - before


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


@pytest.mark.parametrize(
    ("name", "words"),
    [("killed_rank1.json", "was killed, perhaps because memory"), ("bug_rank1.json", "never seen before")],
)
def test_a_reader_that_dies_costs_only_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str, helpers: Callable[[], set[int]]
) -> None:
    monkeypatch.setattr(reading, "isolated", lambda _module: [sys.executable, "-c", FRAGILE])
    for rank in (0, 2, 3):
        write(tmp_path / f"rank{rank}.json", rank=rank)
    write(tmp_path / name, rank=1)
    summaries = {Path(one.path).name: one for one in read_all(sources(tmp_path), TWO)}
    assert words in summaries[name].error and summaries[name].pattern is None
    assert [one.pattern is not None for key, one in sorted(summaries.items()) if key != name] == [True] * 3
    assert not helpers()


def test_what_somebody_prints_in_a_reader_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "isolated", lambda _module: [sys.executable, "-c", FRAGILE])
    for rank in (0, 1):
        write(tmp_path / f"chatty_rank{rank}.json", rank=rank)
    assert all(one.pattern is not None for one in read_all(sources(tmp_path), TWO))


def test_names_that_are_no_text_can_be_read(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}\udcff\n.json", rank=rank)
    assert all(one.pattern is not None for one in read_all(sources(tmp_path), TWO))
