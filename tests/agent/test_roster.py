"""Which workers an agent sees, and how they end."""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eroica.agent import roster
from eroica.agent.roster import ProcessWatch, Roster, memory_files, memory_kills, process_facts
from eroica.model.look import Ending
from eroica.settings import Settings
from eroica.wire import beat
from eroica.wire.beat import MAGIC
from eroica.wire.messages import WorkerStatus


def register(directory: Path, pid: int, rank: int = 0, **facts: object) -> beat.BeatWriter:
    """A beat file as the process `pid` would have made it."""
    identity = {"global_rank": rank, "pid": pid, "world_size": 2, "host": "h", **facts}
    writer = beat.BeatWriter.create(directory, identity)
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
    return worker.report()


def test_a_worker_is_found_by_its_file_and_its_iterations_are_judged(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    writer = register(tmp_path, sleeper.pid)
    roster = Roster(tmp_path, Settings(), Clock())
    roster.scan()
    assert only(roster).state == "learning" and only(roster).worker.world_size == 2
    for iteration in range(1, 400):
        writer.beat(iteration, iteration, 50_000_000, beat.STEADY, 0)
        roster.poll()
    status = only(roster)
    assert status.iteration == 399 and status.current_s == pytest.approx(0.05) and status.steady
    for iteration in range(400, 700):
        writer.beat(iteration, iteration, 80_000_000, beat.STEADY, 0)
        roster.poll()
    trigger = only(roster).trigger
    assert trigger is not None and "%" in trigger.reason
    assert trigger.current_s > 1.05 * (trigger.baseline_s or 0)


def test_each_report_tells_the_mean_of_the_iterations_since_the_one_before(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    writer = register(tmp_path, sleeper.pid)
    roster = Roster(tmp_path, Settings(), Clock())
    roster.scan()
    (worker,) = roster.workers.values()
    told = []
    for first, last, judge in ((1, 2, True), (2, 12, True), (12, 22, False), (22, 22, True)):
        for iteration in range(first + 1, last + 1):
            writer.beat(iteration, iteration, 0 if iteration == 12 else 10_000_000 * first, beat.STEADY, 0)
            if iteration % 3 == 0:
                roster.poll(judge)
        roster.poll(judge)
        told.append(worker.report().latest_s)
    # what came before the agent is not told, iterations without a start do not count, those inside a window do
    assert told == [None, pytest.approx(0.02), pytest.approx(0.12), None]


def test_signing_off_and_dying_are_told_apart(tmp_path: Path) -> None:
    clock = Clock()
    roster = Roster(tmp_path, Settings(), clock)
    states = {}
    for rank, signs_off in enumerate((True, False)):
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        writer = register(tmp_path, process.pid, rank)
        writer.beat(1, 1, 1, beat.STEADY, 0)
        roster.scan()
        roster.poll()
        if signs_off:
            writer.beat(2, 1, 1, beat.FINISHED, 0)
            writer.path.unlink()
        process.kill()
        process.wait()
        process.stdin.close()
        roster.scan()
        status = roster.workers[process.pid].report()
        assert status.ended
        states[rank] = status.state
    assert states == {0: "finished", 1: "gone"}
    assert list(tmp_path.glob("*.beat")) == []
    clock.now += 1000
    roster.scan()
    assert roster.workers == {}


def test_files_left_behind_before_we_came_are_no_workers_and_no_deaths(tmp_path: Path) -> None:
    register(tmp_path, 2**22 - 1)
    for suffix in ("ask", "answer"):
        (tmp_path / f"{2**22 - 1}.{suffix}").touch()
    roster = Roster(tmp_path, Settings(), Clock())
    roster.scan()
    assert roster.workers == {} and list(tmp_path.iterdir()) == [] and roster.notes == []


def test_who_signed_off_tells_its_exit_status_later_and_a_second_life_is_another_worker(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    clock = Clock()
    roster = Roster(tmp_path, Settings(), clock)
    writer = register(tmp_path, sleeper.pid)
    roster.scan()
    former = roster.workers[sleeper.pid]
    writer.beat(2, 2, 1, beat.FINISHED, 0)
    writer.path.unlink()
    roster.scan()
    clock.now += 3
    ending = former.report().ending
    assert ending is not None and (ending.kind, ending.number, ending.ago_s) == ("signed-off", 0, 3.0)
    register(tmp_path, sleeper.pid)  # `watch` again, in the same process
    roster.scan()
    assert len(roster.living) == 1 and roster.workers[sleeper.pid] is not former


def test_a_quiet_worker_is_told_to_be_silent_and_one_before_us_keeps_its_pauses(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    writer = register(tmp_path, sleeper.pid)
    for iteration in range(1, 60):
        writer.beat(iteration, iteration, 8_000_000_000 if iteration == 30 else 20_000_000, beat.STEADY, 0)
    clock = Clock()
    roster = Roster(tmp_path, Settings(), clock)
    roster.scan()
    for second in range(40):
        clock.now += 0.5
        roster.poll()
        assert only(roster).silent == (second > 32), second  # twice 8 s
    status = only(roster)
    assert "longest pause so far was 8 s" in status.silence and status.silent_s == pytest.approx(19.5)
    writer.touch(1000)
    clock.now += 0.5
    roster.poll()
    assert not only(roster).silent and only(roster).silence == "" and only(roster).silent_s == 0.0


def test_a_file_that_is_no_worker_is_refused_once_and_named(tmp_path: Path) -> None:
    (tmp_path / "77.beat").write_bytes(os.urandom(100))
    hostile = MAGIC + struct.pack("<I", 40) + json.dumps({"global_rank": "../../x", "pid": 1}).encode().ljust(40)
    (tmp_path / "78.beat").write_bytes(hostile + bytes(beat.FILE_BYTES))
    roster = Roster(tmp_path, Settings(), Clock())
    roster.scan()
    roster.scan()
    assert len(roster.notes) == 2 and roster.workers == {}


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
