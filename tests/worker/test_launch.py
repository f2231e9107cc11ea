"""Starting the agent from a worker."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from eroica.start import isolated
from eroica.wire.places import Places
from eroica.worker import launch


@pytest.fixture
def where(tmp_path: Path) -> Places:
    (tmp_path / "runtime").mkdir()
    return Places("job", "host", tmp_path / "run", tmp_path / "runtime", tmp_path / "scratch")


def test_an_agent_is_missing_until_somebody_holds_the_lock(where: Places) -> None:
    assert launch.agent_is_missing(where.runtime)
    assert launch.agent_is_missing(where.runtime)
    handle = os.open(where.runtime / "agent.lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert not launch.agent_is_missing(where.runtime)
    os.close(handle)
    assert launch.agent_is_missing(where.runtime)


def test_the_agent_is_started_with_the_jobs_places_and_as_nobodys_child(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nsleep 0.2\necho "$EROICA_JOB $EROICA_RUN_DIR $PPID $*" > {told}.draft\n'
                       f'mv {told}.draft {told}\n')  # fmt: skip
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    before = {child.pid for child in psutil.Process().children()}
    launch.start_agent(where)
    end = time.monotonic() + 20
    while not told.exists() and time.monotonic() < end:
        time.sleep(0.02)
    job, run, _, *command = told.read_text().split()
    assert (job, run, command) == ("job", str(where.run), isolated("eroica.agent")[1:])
    assert {child.pid for child in psutil.Process().children()} <= before
