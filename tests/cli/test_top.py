"""`eroica top`: which job it shows, and that it leaves the terminal as it found it."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from eroica.cli import top as module
from eroica.cli.top import top
from eroica.errors import UsageError
from eroica.model.worker import Worker
from eroica.wire.messages import JobStatus, WorkerStatus


def keep(run: Path, name: str) -> Path:
    run.mkdir(mode=0o700, parents=True)
    worker = WorkerStatus(worker=Worker(global_rank=0, pid=1, host="n"), state="steady", iteration=40)
    status = JobStatus(job=name, phase="watching", message="1 worker, watching", iteration=40, workers=(worker,))
    (run / "status.json").write_bytes(msgspec.json.encode(status))
    return run


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "running_jobs", dict)
    for name in ("EROICA_COLLECTOR", "EROICA_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_into_a_pipe_it_prints_one_screen_of_the_only_job(tmp_path: Path) -> None:
    keep(tmp_path / "eroica-report" / "a", "job-a")
    shown = CliRunner().invoke(top, [])
    assert shown.exit_code == 0 and "job-a" in shown.output and "\x1b" not in shown.output


@pytest.mark.parametrize(
    "bad", ["{", '{"job":"a","began":0,"at_s":[2,1],"iteration":[1],"mean_ms":[9,1e999]}', "[" * 5000]
)
def test_damaged_iteration_times_cost_only_themselves(tmp_path: Path, bad: str) -> None:
    run = keep(tmp_path / "eroica-report" / "a", "job-a")
    (run / "history.json").write_text(bad)
    shown = CliRunner().invoke(top, [])
    assert shown.exit_code == 0 and "job-a" in shown.output


def test_of_several_jobs_one_has_to_be_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        keep(tmp_path / "eroica-report" / name, f"job-{name}")
    asked = CliRunner().invoke(top, [])
    assert isinstance(asked.exception, UsageError) and "several jobs: " in str(asked.exception)
    assert "job-b" in CliRunner().invoke(top, ["b"]).output
    assert "job-a" in CliRunner().invoke(top, ["--out", "eroica-report/a"]).output


def test_a_collector_named_by_the_environment_needs_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_COLLECTOR", "http://127.0.0.1:9")
    assert "EROICA_TOKEN" in str(CliRunner().invoke(top, []).exception)


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_ends_it_and_screen_and_keyboard_are_as_before(tmp_path: Path, key: bytes) -> None:
    run = keep(tmp_path / "run", "job-a")
    program, handle = pty.fork()
    if program == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that were started in the background ignore it
        os.execve(sys.executable, [sys.executable, "-m", "eroica", "top", str(run)], {**os.environ, "TERM": "xterm"})
    before = termios.tcgetattr(handle)
    data, end = b"", time.monotonic() + 20
    while b"open a window now" not in data and time.monotonic() < end:
        if select.select([handle], [], [], 0.1)[0]:
            data += os.read(handle, 65_536)
    during = termios.tcgetattr(handle)
    os.write(handle, key)
    try:
        while more := os.read(handle, 65_536):
            data += more
    except OSError:  # the other end is closed
        pass
    assert os.waitpid(program, 0)[1] == 0
    after = termios.tcgetattr(handle)
    os.close(handle)
    assert b"\x1b[?1049h" in data and data.rindex(b"\x1b[?1049l") > data.rindex(b"\x1b[?1049h")
    assert not during[3] & termios.ICANON and after[3] == before[3]
