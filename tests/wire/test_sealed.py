"""Shared memory that nobody can cut short, and what stands in for it where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.wire import beat, sealed
from eroica.wire.beat import page_of

CUT_SHORT = """
import os, pathlib, sys
from eroica.wire import beat
writer = beat.BeatWriter.create(pathlib.Path(sys.argv[1]), {"pid": os.getpid()}, seal=sys.argv[2] == "sealed")
agent = beat.BeatReader.open(writer.path)
os.truncate(writer.path, 0)
links = [link for link in pathlib.Path("/proc/self/fd").iterdir() if link.is_file()]
links = [link for link in links if "eroica-beat" in os.readlink(link)]
refusals = set()
for link in links:
    try:
        os.truncate(link, 0)
    except OSError as error:
        refusals.add(error.strerror)
writer.beat(7, 7, 7, beat.STEADY, 0)
sys.stdout.write(f"{refusals} at {agent.beat().iteration}")
"""


def beat_file(directory: Path, place: object) -> Path:
    path = directory / "1.beat"
    path.write_bytes(page_of({"pid": 1, "shared_memory": place}))
    return path


def test_who_cuts_the_beat_file_short_ends_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CUT_SHORT, str(tmp_path)]
    done = subprocess.run([*command, "sealed"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{'Operation not permitted'} at 7", "")
    plain = subprocess.run([*command, "plain"], capture_output=True, text=True, check=False)
    assert plain.returncode == -7, "this is what the sealed memory is for"


@pytest.mark.parametrize("seal", [True, False])
def test_both_kinds_carry_beats_and_orders_and_leave_nothing_open(tmp_path: Path, seal: bool) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    writer = beat.BeatWriter.create(tmp_path, {"global_rank": 3}, seal)
    reader = beat.BeatReader.open(writer.path)
    assert writer.path.stat().st_size == (4096 if seal else beat.FILE_BYTES)
    writer.beat(5, 7, 8, beat.STEADY, 0)
    reader.give(beat.Order(1, beat.PROBE, 0, 1, 2, 0, 0, "a"))
    assert reader.identity == {"global_rank": 3}
    assert reader.beat() == beat.Beat(5, 7, 7, beat.STEADY, 0) and writer.new_order() is not None
    reader.close()
    writer.remove()
    assert len(list(Path("/proc/self/fd").iterdir())) == before and not list(tmp_path.iterdir())


def test_without_sealed_memory_the_file_itself_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", lambda *_: (_ for _ in ()).throw(OSError(38, "not here")))
    writer = beat.BeatWriter.create(tmp_path, {"global_rank": 3})
    writer.beat(5, 7, 8, beat.STEADY, 0)
    assert beat.BeatReader.open(writer.path).beat() == beat.Beat(5, 7, 7, beat.STEADY, 0)


def test_a_worker_that_ended_before_anybody_looked_was_registered_all_the_same(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from eroica.wire import beat; beat.BeatWriter.create(pathlib.Path(sys.argv[1]), {'a': 1})"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    reader = beat.BeatReader.open(next(tmp_path.glob("*.beat")))
    assert reader.identity == {"a": 1} and reader.beat() is None and reader.result() == beat.NO_RESULT


def test_a_number_that_means_another_file_by_now_is_neither_mapped_nor_closed(tmp_path: Path) -> None:
    writer = beat.BeatWriter.create(tmp_path, {})
    assert writer._place is not None
    number = writer._place["file"]
    other = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    os.dup2(other, number)
    with pytest.raises(ValueError, match="out of reach"):
        beat.BeatReader.open(writer.path)
    writer.remove()
    os.close(number)
    os.close(other)


def test_it_leads_to_no_file_that_is_not_sealed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"x" * beat.FILE_BYTES)
    with (tmp_path / "precious").open("r+b") as file:
        place = sealed.whereabouts(file.fileno())
        with pytest.raises(ValueError, match="out of reach"):
            beat.BeatReader.open(beat_file(tmp_path, place))
    assert (tmp_path / "precious").read_bytes() == b"x" * beat.FILE_BYTES


@pytest.mark.parametrize(
    "place",
    [5, "x", {}, {"pid": "1/../self", "file": 0, "inode": 1}, {"pid": True, "file": 0, "inode": 1}, {"pid": -1}]
    + [{"pid": os.getpid(), "file": number, "inode": 2**70} for number in (-1, 0, 2**70)],
)
def test_odd_places_are_refused(tmp_path: Path, place: object) -> None:
    with pytest.raises(ValueError, match=r"nowhere|out of reach"):
        beat.BeatReader.open(beat_file(tmp_path, place))
