"""Files, folders and patterns as people give them."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from written_traces import write

from eroica.errors import InputError, UsageError
from eroica.offline import diagnose
from eroica.offline import discover as module
from eroica.offline.discover import discover


def names(paths: object) -> list[str]:
    return [source.path.name for source in paths]  # type: ignore[attr-defined]


def test_a_folder_gives_its_traces_and_counts_the_rest(tmp_path: Path) -> None:
    write(tmp_path / "rank0_trace.json")
    write(tmp_path / "deep" / "er" / "rank1_trace.json.gz")
    write(tmp_path / "config.json", {"lr": 0.1})
    write(tmp_path / ".hidden" / "rank2_trace.json")
    (tmp_path / "train.log").write_text("hello")
    found = discover([tmp_path])
    assert names(found.traces) == ["rank1_trace.json.gz", "rank0_trace.json"]
    assert [source.rank for source in found.traces] == [1, 0]
    assert found.notes == ("2 files were passed over: no profiler traces or dumps (config.json, train.log)",)


def test_a_trace_is_known_by_its_content_whatever_it_is_called(tmp_path: Path) -> None:
    write(tmp_path / "step100.json")
    write(tmp_path / "profile")
    write(tmp_path / "packed_without_saying.gz")
    (tmp_path / "events").write_text('[{"ph": "X", "name": "a", "ts": 1, "dur": 2}]')
    (tmp_path / "sorted").write_text('[{"args": {"a": {"b": [1]}, "c": {}}, "dur": 2, "name": "a", "ph": "X"}]')
    (tmp_path / "list.json").write_text('[{"args": {"ph": 1}, "name": "a"}]')
    assert len(discover([tmp_path]).traces) == 5


def test_patterns_are_expanded_here_even_with_two_stars(tmp_path: Path) -> None:
    write(tmp_path / "a" / "rank0.json")
    write(tmp_path / "b" / "c" / "rank1.json")
    write(tmp_path / "b" / "other.json", {"no": "trace"})
    assert names(discover([str(tmp_path / "**" / "*.json")]).traces) == ["rank0.json", "rank1.json"]
    assert names(discover([tmp_path / "b/c/rank[0-9].json", tmp_path / "b"]).traces) == ["rank1.json"]


def test_a_link_that_leads_up_does_not_pull_in_what_lies_beside_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "rank7.json")
    write(tmp_path / "other" / "rank8.json")
    write(tmp_path / "elsewhere" / "rank1.json")
    write(tmp_path / "mine" / "deep" / "rank0.json")
    for name, target in (("up", ".."), ("deep/up", "../.."), ("latest", "../elsewhere")):
        (tmp_path / "mine" / name).symlink_to(target)
    assert sorted(names(discover([tmp_path / "mine"]).traces)) == ["rank0.json", "rank1.json"]
    assert names(discover([str(tmp_path / "mine" / "**" / "*.json")]).traces) == ["rank0.json"]


def test_what_is_no_window_of_ours_makes_no_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "run" / "windows" / "12345678901" / "window.json", {})
    write(tmp_path / "traces" / "windows" / "rank0.json")
    write(tmp_path / "traces" / "patterns" / "rank1.json")
    found = discover([tmp_path / "traces"])
    assert sorted(names(found.traces)) == ["rank0.json", "rank1.json"] and not found.saved
    with pytest.raises(InputError, match="no usable pattern"):
        diagnose(tmp_path / "run")
    monkeypatch.setattr(Path, "iterdir", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert names(discover([tmp_path / "traces" / "windows"]).traces) == ["rank0.json"]
    assert discover([tmp_path]).traces


def test_what_is_met_twice_counts_once_and_loops_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a" / "rank0.json")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "latest.json").symlink_to(path)
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    (tmp_path / "a" / "broken.json").symlink_to(tmp_path / "nowhere")
    found = discover([tmp_path, tmp_path / "a", path])
    assert len(found.traces) == 1


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(UsageError, match="no profiler trace"):
        discover([tmp_path])
    with pytest.raises(InputError, match="no regular file"):
        discover([tmp_path / "rank0.json"])


def test_dumps_and_run_directories_are_told_from_traces(tmp_path: Path) -> None:
    entry = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "state": "scheduled"}
    (tmp_path / "_dump_3").write_bytes(pickle.dumps({"version": "2.9", "pg_config": {}, "entries": [entry]}, 2))
    write(tmp_path / "run" / "windows" / "1" / "window.json", {})
    write(tmp_path / "run" / "verdict.json", {})
    write(tmp_path / "traces" / "rank0.json")
    write(tmp_path / "traces" / "verdict.json", {"verdict": "slow"})  # what --json may have left there
    found = discover([tmp_path])
    assert names(found.dumps) == ["_dump_3"] and found.dumps[0].rank == 3
    assert found.saved == (tmp_path / "run",)
    assert names(found.traces) == ["rank0.json"]


def test_a_search_that_finds_too_much_stops_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(6):
        write(tmp_path / f"rank{rank}.json")
    monkeypatch.setattr(module, "MOST_ENTRIES", 2)
    assert "only the first 2 entries" in discover([tmp_path]).notes[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.json", "there is no file or folder"),
        ("no*match.json", "nothing matches"),
        ("link.json", "there is no file or folder"),
        ("empty", "no profiler trace, Flight Recorder dump or run directory in"),
        ("with\0null", "there is no file or folder"),
        ("**/nothing*", "nothing matches"),
        ("missing/*/x.json", "nothing matches"),
    ],
)
def test_a_path_that_leads_nowhere_is_one_clear_error(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=words):
        discover([tmp_path / name])


def test_what_must_not_be_read_is_named_and_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "theirs"):
        write(tmp_path / name / "rank0.json")
    real = os.scandir

    def guarded(path: Path) -> object:
        if Path(path).name == "theirs":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", guarded)
    found = discover([tmp_path])
    assert names(found.traces) == ["rank0.json"] and "theirs: Permission denied" in found.notes[0]
    with pytest.raises(InputError, match="theirs cannot be read: Permission denied"):
        discover([tmp_path / "theirs"])
