"""How the end of a process is noticed and read."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eroica.agent import roster
from eroica.agent.roster import ProcessWatch, memory_files, memory_kills, process_facts
from eroica.model.look import Ending


def child(code: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"import sys; sys.stdin.readline(); {code}"], stdin=subprocess.PIPE)


def let_go(process: subprocess.Popen[bytes], reap: bool = True) -> None:
    process.stdin.close()
    if reap:
        process.wait()


def ended(watch: ProcessWatch) -> Ending:
    end = time.monotonic() + 10
    while watch.ending is None and time.monotonic() < end:
        time.sleep(0.005)
    assert watch.ending is not None
    return watch.ending


@pytest.fixture(params=["pidfd", "polling"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "polling":

        def refused(pid: int) -> int:
            raise OSError(38, "no such call")

        monkeypatch.setattr(os, "pidfd_open", refused)
    return str(request.param)


def test_a_zombie_tells_its_exit_status(way: str) -> None:
    process = child("raise SystemExit(7)")
    watch = ProcessWatch(process.pid)
    assert watch.ending is None
    let_go(process, reap=False)
    assert ended(watch) == Ending(kind="exit", number=7)
    process.wait()


def test_the_descriptor_is_readable_at_once() -> None:
    process = child()
    watch = ProcessWatch(process.pid)
    poll = select.poll()
    poll.register(watch.handle, select.POLLIN)
    began = time.monotonic()
    process.kill()
    assert poll.poll(5000) and time.monotonic() - began < 2.0
    process.wait()
    let_go(process)
    watch.close()


def test_a_process_under_an_id_that_was_used_before_is_another_one() -> None:
    facts = process_facts(os.getpid())
    assert facts is not None
    assert ProcessWatch(os.getpid(), started=facts.start).ending is None
    stranger = ProcessWatch(os.getpid(), started=facts.start - 5)
    assert stranger.ending == Ending() and stranger.handle == -1


def test_kills_for_memory_are_counted_wherever_the_kernel_does(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert memory_kills([tmp_path / "memory.events", tmp_path / "gone"]) == 2
    assert memory_files(os.getpid())[0].is_file()


def test_a_kill_for_memory_in_its_group_belongs_to_a_killed_process_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "memory.events"
    monkeypatch.setattr(roster, "memory_files", lambda pid: [counter])
    for code, starved in ((9, True), (15, False)):
        counter.write_text("oom_kill 4\n")
        process = child()
        watch = ProcessWatch(process.pid)
        watch.refresh()
        counter.write_text("oom_kill 5\n")
        watch.refresh()  # a large process takes a while to die
        process.send_signal(code)
        process.wait()
        let_go(process)
        assert ended(watch).out_of_memory is starved or ended(watch).kind == "unknown"
