"""Which workers an agent sees, and how they end."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.agent.roster import Roster, process_start
from eroica.settings import Settings
from eroica.wire import beat
from eroica.wire.messages import AgentReport, WorkerStatus


def register(directory: Path, pid: int, rank: int = 0) -> beat.BeatWriter:
    """A beat file as the process `pid` would have made it."""
    writer = beat.BeatWriter.create(directory, {"global_rank": rank, "pid": pid, "world_size": 2, "host": "h"})
    writer.path = writer.path.rename(directory / f"{pid}.beat")
    return writer


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def only(roster: Roster) -> WorkerStatus:
    (worker,) = roster.workers.values()
    return worker.status()


def test_a_worker_is_found_by_its_file_and_its_iterations_are_judged(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    writer = register(tmp_path, sleeper.pid)
    roster = Roster(tmp_path, Settings(), Clock())
    roster.scan()
    assert only(roster).state == "learning" and only(roster).worker.world_size == 2
    for iteration in range(1, 400):
        writer.beat(iteration, iteration, iteration, 50_000_000, beat.STEADY, 0)
        roster.poll()
    status = only(roster)
    assert status.iteration == 399 and status.current_s == pytest.approx(0.05) and status.steady
    for iteration in range(400, 700):
        writer.beat(iteration, iteration, iteration, 80_000_000, beat.STEADY, 0)
        roster.poll()
    trigger = only(roster).trigger
    assert trigger is not None and "%" in trigger.reason
    assert trigger.current_s > 1.05 * (trigger.baseline_s or 0)


def test_iterations_between_two_polls_are_not_lost(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    writer = register(tmp_path, sleeper.pid)
    roster = Roster(tmp_path, Settings(), Clock())
    writer.beat(1, 1, 1, 10, beat.STEADY, 0)
    roster.scan()
    roster.poll()
    for iteration in range(2, 202):
        writer.beat(iteration, iteration, iteration, 20_000_000, beat.STEADY, 0)
    roster.poll()
    assert only(roster).current_s == pytest.approx(0.02)


def test_iterations_slowed_by_our_own_window_do_not_count(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    writer = register(tmp_path, sleeper.pid)
    roster = Roster(tmp_path, Settings(), Clock())
    roster.scan()
    for iteration in range(1, 900):
        captured = 300 <= iteration < 450
        writer.beat(iteration, iteration, iteration, 90_000_000 if captured else 50_000_000, beat.STEADY, 0)
        roster.poll(judge=not captured)
    status = only(roster)
    assert status.trigger is None and status.iteration == 899 and status.current_s == pytest.approx(0.05)


def test_signing_off_and_dying_are_told_apart(tmp_path: Path) -> None:
    clock = Clock()
    roster = Roster(tmp_path, Settings(), clock)
    states = {}
    for rank, signs_off in enumerate((True, False)):
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        writer = register(tmp_path, process.pid, rank)
        writer.beat(1, 1, 1, 1, beat.STEADY, 0)
        roster.scan()
        roster.poll()
        if signs_off:
            writer.beat(2, 1, 1, 1, beat.FINISHED, 0)
            writer.path.unlink()
        process.kill()
        process.wait()
        process.stdin.close()
        roster.scan()
        status = roster.workers[process.pid].status()
        assert status.ended
        states[rank] = status.state
    assert states == {0: "finished", 1: "gone"}
    assert list(tmp_path.glob("*.beat")) == []
    clock.now += 1000
    roster.scan()
    assert roster.workers == {}


def test_a_file_that_is_no_worker_is_refused_once_and_named(tmp_path: Path) -> None:
    (tmp_path / "77.beat").write_bytes(os.urandom(100))
    hostile = beat.MAGIC + struct.pack("<I", 40) + json.dumps({"global_rank": "../../x", "pid": 1}).encode().ljust(40)
    (tmp_path / "78.beat").write_bytes(hostile + bytes(beat.FILE_BYTES))
    roster = Roster(tmp_path, Settings(), Clock())
    roster.scan()
    roster.scan()
    assert len(roster.notes) == 2 and roster.workers == {}


def test_a_process_that_is_gone_has_no_start() -> None:
    assert process_start(os.getpid()) is not None
    assert process_start(2**22 + 1) is None


def test_a_report_of_many_workers_fits_its_limit(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    import msgspec

    register(tmp_path, sleeper.pid)
    roster = Roster(tmp_path, Settings(), Clock())
    roster.scan()
    data = msgspec.msgpack.encode(AgentReport(host="h", pid=1, workers=(only(roster),) * 16))
    assert len(data) < 16_000
