"""Where results go wrong: one line, no traceback, no half file, and files before the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "offline"))
from written_traces import write

from eroica.cli.output import check_target, write_result
from eroica.errors import InputError, UsageError
from eroica.model.verdict import Verdict

_FULL = Path("/dev/full")
full = pytest.mark.skipif(not _FULL.exists(), reason="/dev/full is not here")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return write(tmp_path / "rank0.json", load_us=60_000.0)


def run(*arguments: object, stdout: int | str = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eroica", *map(str, arguments)]
    if isinstance(stdout, str):
        command = ["sh", "-c", f'"$@" {stdout}', "sh", *command]
        stdout = subprocess.PIPE
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@full
@pytest.mark.parametrize("arguments", [["diagnose", "rank0.json"], ["settings"], ["diff", "rank0.json", "rank0.json"]])
def test_a_full_standard_output_is_one_line(slow: Path, arguments: list[str]) -> None:
    done = run(*(slow if one == "rank0.json" else one for one in arguments), stdout="> /dev/full")
    assert done.returncode == 1 and "standard output cannot be written: No space left" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


@full
def test_files_are_written_before_the_terminal_is(slow: Path, tmp_path: Path) -> None:
    kept, page, record = tmp_path / "kept", tmp_path / "page.html", tmp_path / "verdict.json"
    run("diagnose", slow, "--out", kept, "--html", page, "--json", record, stdout="> /dev/full")
    assert Verdict.from_json(record.read_bytes()).verdict == "slow"
    assert page.read_bytes().endswith(b"</html>") and (kept / "verdict.json").exists()
    page.unlink()
    record.unlink()
    run("report", kept, "--html", page, "--json", record, stdout="> /dev/full")
    assert record.exists() and page.exists()
    record.unlink()
    run("diff", slow, slow, "--json", record, stdout="> /dev/full")
    assert record.exists()


def test_a_reader_that_has_gone_changes_nothing(slow: Path) -> None:
    done = run("diagnose", slow, stdout="| true; exit 0")
    assert done.stderr == ""
    reading, writing = os.pipe()
    os.close(reading)
    done = run("diagnose", slow, stdout=writing)
    os.close(writing)
    assert done.returncode == 3 and done.stderr == ""


def test_a_closed_standard_output_is_no_error(slow: Path) -> None:
    done = run("diagnose", slow, stdout=">&-")
    assert done.returncode == 3 and "Traceback" not in done.stderr


def test_what_was_there_stays_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "verdict.json"
    file.write_bytes(b"old")
    file.chmod(0o640)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(InputError, match="No space left"):
        write_result(file, b"new")
    assert file.read_bytes() == b"old" and [one.name for one in tmp_path.iterdir()] == ["verdict.json"]
    monkeypatch.undo()
    write_result(file, b"new")
    assert file.read_bytes() == b"new" and file.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link_and_a_pipe_is_written_into(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_bytes(b"old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_result(tmp_path / "link.json", b"new")
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "real.json").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    number = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_result(tmp_path / "pipe", b"through")
    assert os.read(number, 100) == b"through"
    os.close(number)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/below"])
def test_a_place_that_cannot_be_is_wrong_usage(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--json"):
        check_target(tmp_path / name)


def test_out_appears_whole_or_not_at_all(slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eroica.archive.store import Store
    from eroica.offline.examine import examine, keep
    from eroica.settings import Settings

    found = examine([slow], Settings(readers=1))

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "save_final", fails)
    with pytest.raises(OSError):
        keep(found, tmp_path / "kept")
    assert [one.name for one in tmp_path.iterdir()] == ["rank0.json"]
    monkeypatch.undo()
    (tmp_path / "kept").mkdir()
    keep(found, tmp_path / "kept")
    assert (tmp_path / "kept" / "verdict.json").exists()
