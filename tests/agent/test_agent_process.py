"""The agent as a process: one per job and host, on all cores, and with last words."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from eroica.start import isolated
from eroica.wire.places import Places, places
from eroica.worker.launch import start_agent


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """A job of its own in this process's environment; whatever was started for it is ended."""
    for name in [name for name in os.environ if name.startswith("EROICA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EROICA_JOB", f"job-{os.getpid()}-{tmp_path.name}")
    for name in ("RUN", "RUNTIME", "SCRATCH"):
        monkeypatch.setenv(f"EROICA_{name}_DIR", str(tmp_path / name.lower()))
    yield places(os.environ)
    for process in ours(os.environ):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def ours(environment: Mapping[str, str], module: str = "eroica.") -> list[psutil.Process]:
    """Living processes of the job that run one of our modules."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            interpreter, *words = process.cmdline() or [""]
            runs = interpreter == sys.executable and any(word.startswith(module) for word in words)
            if runs and process.environ().get("EROICA_JOB") == environment["EROICA_JOB"]:
                found.append(process)
    return found


def test_of_two_agents_started_at_once_exactly_one_lives_and_on_its_launchers_cores(
    job: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EROICA_COLLECTOR", "http://127.0.0.1:9")
    monkeypatch.setenv("LOCAL_RANK", "0")
    cores = os.sched_getaffinity(os.getppid())

    def start() -> None:
        os.sched_setaffinity(0, {min(cores)})  # of this thread, as a launcher binds each rank
        start_agent(job)

    starters = [threading.Thread(target=start) for _ in range(2)]
    for starter in starters:
        starter.start()
    seen: set[int] = set()
    living: list[psutil.Process] = []
    end = time.monotonic() + 60
    while not (len(seen) == 2 and len(living) == 1 and (job.runtime / "run").exists()) and time.monotonic() < end:
        living = ours(os.environ, "eroica.agent")
        seen |= {process.pid for process in living}
        time.sleep(0.01)
    for starter in starters:
        starter.join()
    assert len(seen) == 2 and len(living) == 1
    assert living[0].cpu_affinity() == sorted(cores)


def test_an_agent_with_a_broken_settings_file_says_so_and_leaves_no_collector(
    job: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.toml").write_text("window_s = [")
    monkeypatch.setenv("EROICA_CONFIG", str(tmp_path / "broken.toml"))
    done = subprocess.run(isolated("eroica.agent"), timeout=60, check=False, stderr=subprocess.DEVNULL)
    assert done.returncode == 1
    assert "broken.toml cannot be used" in job.log("agent").read_text()
    assert ours(os.environ) == []
