"""`eroica diagnose`: what it prints, writes and returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1] / "offline"))
from written_traces import trace, write

from eroica.archive.load import SavedRun, open_saved, read_patterns
from eroica.cli import group
from eroica.errors import EroicaError, UsageError
from eroica.model.verdict import Verdict
from eroica.offline import reading

SLOW_US = 60_000.0


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Two recordings: a slow loader on both of two workers, and one worker with nothing wrong."""
    for rank in (0, 1):
        write(tmp_path / "jobs" / "slow" / f"rank{rank}.json.gz", rank=rank, world_size=2, load_us=SLOW_US)
    write(tmp_path / "jobs" / "fine" / "rank0.json", rank=0, world_size=1)
    return tmp_path / "jobs"


def diagnose(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["diagnose", "--set", "readers=1", *map(str, arguments)])


def test_the_verdict_with_the_greatest_cause_is_printed_and_names_the_others(jobs: Path) -> None:
    done = diagnose(jobs)
    assert done.exit_code == 3
    assert done.stdout.startswith("SLOW  ") and "slow-data-loading" in done.stdout
    assert "also here:" not in done.stdout and "Based on 2 of 2 workers" in done.stdout
    others = done.stdout[done.stdout.index("Also here") :].splitlines()
    assert others[1].split() == ["job", "recording", "verdict", "cause", "workers"]
    assert others[2].split() == ["fine", "steps", "5–10", "healthy"]
    assert not done.stderr


def test_all_shows_every_recording_in_full(jobs: Path) -> None:
    done = diagnose(jobs, "--all")
    assert done.exit_code == 3
    places = [done.stdout.index(word) for word in ("slow, steps 5–10", "SLOW  ", "fine, steps 5–10", "HEALTHY  ")]
    assert places == sorted(places) and "also here" not in done.stdout.lower()


def test_json_is_the_verdict_in_a_file_or_alone_on_standard_output(jobs: Path, tmp_path: Path) -> None:
    out = tmp_path / "verdict.json"
    assert diagnose(jobs / "slow", "--json", out).exit_code == 3
    verdict = Verdict.from_json(out.read_bytes())
    assert verdict.cause is not None and verdict.window is not None and verdict.window.kind == "trace"
    alone = diagnose(jobs / "slow", "--json", "-")
    assert json.loads(alone.stdout)["summary"] == verdict.summary
    quiet = diagnose(jobs / "slow", "--quiet")
    assert quiet.exit_code == 3 and not quiet.output


def test_what_out_keeps_can_be_opened_and_diagnosed_again(jobs: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    first = diagnose(jobs, "--out", out)
    saved = open_saved(out)
    assert isinstance(saved, SavedRun) and saved.verdict is not None and saved.verdict.job == "slow"
    assert [len(read_patterns(window)[1]) for window in saved.windows] == [2, 1]
    origin = saved.origin()
    assert origin is not None and origin.window_id == 1
    again = diagnose(out)
    assert again.exit_code == first.exit_code == 3
    assert again.stdout.splitlines()[0] == first.stdout.splitlines()[0]
    assert diagnose(out / "windows" / "2").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["~nosuchuser/x"], "~nosuchuser/x"),
        (["missing"], "there is no file or folder missing"),
        (["*.nothing"], "nothing matches '[*].nothing'"),
        (["empty"], "no profiler trace, Flight Recorder dump or run directory in empty"),
        (["."], "no profiler trace"),
        (["rank0.json", "--rank-regex", "("], "no regular expression"),
        (["rank0.json", "--json", "empty"], "is a directory"),
        (["rank0.json", "--json", "no/such/verdict.json"], "there is no directory no/such"),
        (["rank0.json", "--out", "rank0.json"], "is a file; name a new directory"),
        (["rank0.json", "--out", "full"], "is not empty"),
        (["rank0.json", "--set", "min_gian=1"], "unknown setting"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    if arguments != ["."]:
        write(tmp_path / "rank0.json")
    done = diagnose(*arguments)
    assert isinstance(done.exception, UsageError)
    with pytest.raises(UsageError, match=words):
        raise done.exception


def test_an_interrupted_reading_ends_with_130_and_one_line(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reading, "read_one", interrupted)
    done = diagnose(jobs)
    assert done.exit_code == 130 and done.stderr == "eroica: interrupted\n"


def test_names_from_the_folder_do_not_obey_in_a_terminal(tmp_path: Path) -> None:
    write(tmp_path / "\x1b[31m[red]" / "odd\x1b]0;title\x07.json", rank=None)
    done = diagnose(tmp_path)
    assert not isinstance(done.exception, EroicaError) and "\x1b" not in done.output and "\x07" not in done.output


# ---------------------------------------------------------------------- Ctrl-C in a real process


def large(path: Path, megabytes: int, rank: int) -> Path:
    """A trace that takes seconds to read; all but its first events are copies."""
    events = json.dumps(trace(rank=rank)["traceEvents"])[1:-1].encode()
    copies = [events] * (megabytes * 1_000_000 // len(events))
    head = f'{{"schemaVersion": 1, "distributedInfo": {{"rank": {rank}}}, "traceEvents": ['.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + b",".join(copies) + b"]}")
    return path


def until(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_open(path: Path, pid: int) -> bool:
    try:
        return str(path) in [file.path for file in psutil.Process(pid).open_files()]
    except psutil.Error:
        return False


#: Started in the background by a shell, these tests inherit that Ctrl-C is ignored, and so would what they start.
HEEDING = (
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
)


@pytest.mark.parametrize("files", [1, 2])
def test_ctrl_c_ends_everything_at_once_and_leaves_nothing(tmp_path: Path, files: int) -> None:
    paths = [large(tmp_path / "traces" / f"rank{rank}.json", 160 // files, rank) for rank in range(files)]
    out, verdict = tmp_path / "kept", tmp_path / "verdict.json"
    options = ["--set", f"readers={files}", "--out", str(out), "--json", str(verdict)]
    command = [*HEEDING, sys.executable, "-m", "eroica", "diagnose", str(tmp_path / "traces"), *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        family = psutil.Process(process.pid)
        until(lambda: any(is_open(path, one.pid) for path in paths for one in (family, *family.children())))
        readers = family.children()
        assert len(readers) == (files if files > 1 else 0)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (stdout, stderr) == ("", "eroica: interrupted\n")
    assert not any(reader.is_running() for reader in readers)
    assert not out.exists() and not verdict.exists()


def test_readers_go_when_their_parent_is_killed(tmp_path: Path) -> None:
    paths = [large(tmp_path / f"rank{rank}.json", 60, rank) for rank in (0, 1)]
    command = [sys.executable, "-m", "eroica", "diagnose", "--quiet", "--set", "readers=2", str(tmp_path)]
    with subprocess.Popen(command, start_new_session=True) as process:
        family = psutil.Process(process.pid)
        until(lambda: any(is_open(path, one.pid) for path in paths for one in family.children()))
        readers = family.children()
        process.kill()
    until(lambda: not any(reader.is_running() and reader.status() != "zombie" for reader in readers), 10.0)
