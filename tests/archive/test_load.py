"""Whatever a user points at: runs, windows, heaps of patterns, verdict files, and damage of every kind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from eroica.archive.bundle import Bundle
from eroica.archive.forget import BUNDLE_FILE, forget
from eroica.archive.load import (
    SavedRun,
    SavedWindow,
    count_patterns,
    holds_windows,
    looks_saved,
    open_saved,
    open_window,
    read_patterns,
)
from eroica.archive.store import Store, write_json
from eroica.errors import InputError, UsageError
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Coverage, IterationTimes, Verdict, VerdictWindow
from eroica.model.window import WindowPurpose
from eroica.model.worker import Worker
from eroica.wire.codec import encode_record
from support import FleetPlan, synthesize, synthesize_window
from support.run_directories import save_patterns


def verdict(first: int, summary: str = "all is well") -> Verdict:
    return Verdict(
        eroica_version="0", job="j", verdict="healthy", summary=summary, iteration=IterationTimes(),
        window=VerdictWindow(kind="iterations", first_iteration=first, last_iteration=first + 40),
        coverage=Coverage(workers_expected=4, workers_reported=4),
    )  # fmt: skip


def save(run: Path, window_id: int, purpose: WindowPurpose = "manual") -> Path:
    directory = run / "windows" / str(window_id)
    patterns = synthesize(FleetPlan(iterations=4), window_id=window_id)
    save_patterns(directory, synthesize_window(patterns, purpose), patterns)
    return directory


def opened(path: Path) -> SavedWindow:
    saved = open_saved(path)
    assert isinstance(saved, SavedWindow)
    return saved


def test_a_run_is_opened_with_its_windows_in_order_and_the_final_verdicts_origin(tmp_path: Path) -> None:
    for window_id in (10, 2, 1):
        save(tmp_path, window_id)
        Store(tmp_path).save_verdict(window_id, verdict(1000 * window_id))
    Store(tmp_path).save_final(verdict(2000))
    saved = open_saved(tmp_path)
    assert isinstance(saved, SavedRun)
    assert [window.window_id for window in saved.windows] == [1, 2, 10] and saved.job == "j" and not saved.notes
    origin = saved.origin()
    assert origin is not None and origin.window_id == 2
    with pytest.raises(UsageError, match="no window 3; there are: 1, 2, 10"):
        saved.window(3)


def test_a_window_a_heap_of_patterns_and_one_pattern_are_opened(tmp_path: Path) -> None:
    directory = save(tmp_path, 3)
    window, patterns, notes = read_patterns(opened(directory))
    assert window.window_id == 3 and [p.worker.global_rank for p in patterns] == [0, 1, 2, 3] and not notes
    heap, _, _ = read_patterns(opened(directory / "patterns"))
    assert (heap.first_iteration, heap.last_iteration) == (window.first_iteration, window.last_iteration)
    assert len(read_patterns(opened(directory / "patterns" / "2.pattern"))[1]) == 1


def test_damaged_patterns_among_good_ones_become_one_note(tmp_path: Path) -> None:
    patterns = save(tmp_path, 1) / "patterns"
    (patterns / "0.pattern").write_bytes(b"")
    (patterns / "1.pattern").write_bytes((patterns / "1.pattern").read_bytes()[:-30])
    (patterns / "9.pattern").write_bytes(b"\0" * 5_000_000)
    (patterns / "copy.pattern").write_bytes((patterns / "2.pattern").read_bytes())
    (patterns / "readme.txt").write_text("no pattern")
    (patterns / "dir.pattern").mkdir()
    os.mkfifo(patterns / "pipe.pattern")
    _, kept, notes = read_patterns(opened(tmp_path / "windows" / "1"))
    assert [pattern.worker.global_rank for pattern in kept] == [2, 3]
    assert len(notes) == 1 and notes[0].startswith("6 patterns were left out") and "and 3 more" in notes[0]


@pytest.mark.parametrize(
    "change",
    [
        {"duration_s": float("nan")},
        {"duration_s": -1.0},
        {"idle_s": float("inf")},
        {"first_iteration": 5, "last_iteration": 2},
        {"last_iteration": 1 << 60},
        {"host_facts": {"cpu": float("nan")}},
        {"worker": Worker(global_rank=0, world_size=1 << 60)},
        {"functions": (FunctionPattern(key=FunctionKey(kind="gc", name="f"), beta=0.5, critical_s=float("nan")),)},
    ],
)
def test_impossible_numbers_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    good = synthesize(FleetPlan(iterations=4))
    (tmp_path / "0.pattern").write_bytes(encode_record(msgspec.structs.replace(good[0], **change)))
    (tmp_path / "1.pattern").write_bytes(encode_record(good[1]))
    _, kept, notes = read_patterns(opened(tmp_path))
    assert len(kept) == 1 and "0.pattern" in notes[0]


def test_damaged_windows_and_verdicts_cost_only_themselves(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "windows" / "1" / "window.json").write_text("{")
    (tmp_path / "windows" / "2" / "verdict.json").write_text("[" * 100_000)
    (tmp_path / "verdict.json").write_text('{"schema_version": 1}')
    saved = open_saved(tmp_path)
    assert isinstance(saved, SavedRun) and saved.verdict is None and len(saved.notes) == 1
    assert [len(window.notes) for window in saved.windows] == [1, 1]
    assert all(len(read_patterns(window)[1]) == 4 for window in saved.windows)


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[1]", b'{"a": 1}', b"\xff\xfe", b"[" * 200_000])
def test_what_is_no_verdict_is_one_clear_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "v.json").write_bytes(text)
    with pytest.raises(InputError, match=r"v\.json"):
        open_saved(tmp_path / "v.json")


def test_a_verdict_of_a_later_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_bytes(msgspec.structs.replace(verdict(1), schema_version=2).to_json())
    with pytest.raises(InputError, match="schema 2 is later"):
        open_saved(tmp_path / "v.json")


def test_a_pipe_is_not_waited_for_and_an_empty_folder_is_nothing_of_ours(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="no regular file"):
        open_saved(tmp_path / "pipe.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no run, no window and no pattern"):
        open_saved(tmp_path / "empty")


def test_what_holds_windows_can_be_opened_and_has_some(tmp_path: Path) -> None:
    directory = save(tmp_path / "run", 1)
    for path in (tmp_path / "run", directory, directory / "patterns"):
        saved = open_saved(path)
        assert holds_windows(path) and (isinstance(saved, SavedWindow) or saved.windows)  # type: ignore[union-attr]
    (tmp_path / "long" / "windows" / "12345678901").mkdir(parents=True)
    (tmp_path / "long" / "windows" / "12345678901" / "window.json").write_text("{}")
    (tmp_path / "traces" / "windows").mkdir(parents=True)
    (tmp_path / "traces" / "patterns").mkdir()
    Store(tmp_path / "traces").save_final(verdict(1))
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "windows").touch()
    assert not any(holds_windows(tmp_path / name) for name in ("long", "traces", "file"))


@pytest.fixture(scope="module")
def patterns() -> list[WorkerPattern]:
    return list(synthesize(FleetPlan(iterations=4), window_id=1))


def filled(path: Path, patterns: list[WorkerPattern]) -> Path:
    bundle = Bundle(path / BUNDLE_FILE, append=True)
    for pattern in patterns:
        bundle.add(pattern.worker.global_rank, encode_record(pattern))
    bundle.close()
    return path / BUNDLE_FILE


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
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
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
