"""Whatever the user's process has done to `threading`, `os`, `time` and `subprocess`: we neither use it nor show."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from watched_jobs import PROGRAMS, Host, OneOrder

from eroica.wire.beat import DONE, STATE_NAMES, WINDOW
from eroica.worker import pristine

PATCHERS = {"gevent": "gevent", "eventlet": "eventlet", "frozen-time": "freezegun", "taken-away": ""}
ITERATIONS = 1500  # of about a millisecond where nobody else computes
QUICK = ("frozen-time", "taken-away")
EACH = [pytest.param(how, marks=[] if how in QUICK else [pytest.mark.thorough]) for how in PATCHERS]


def command(how: str, iterations: int) -> list[str]:
    return [sys.executable, "-W", "ignore", str(PROGRAMS / "patched.py"), how, str(iterations)]


@pytest.mark.jobs
@pytest.mark.parametrize("how", EACH)
def test_a_patched_training_runs_on_is_watched_and_gives_its_window_and_its_answer(how: str, host: Host) -> None:
    if PATCHERS[how] and importlib.util.find_spec(PATCHERS[how]) is None:
        pytest.skip(f"{PATCHERS[how]} is not installed")
    environment = host.environment()
    del environment["PYTHONPATH"]
    alone = subprocess.run(
        command(how, ITERATIONS), env=environment, capture_output=True, text=True, check=False, timeout=60
    )  # fmt: skip
    order, answers = OneOrder(1, WINDOW, lead=200, length=200, sampling_hz=50), []

    def act(host: Host) -> None:
        order(host)
        for pid in host.workers:
            answer, question = host.runtime / f"{pid}.answer", host.runtime / f"{pid}.ask"
            if order.first and question.exists() and not answers:
                question.write_bytes(b"A")
                answers.append(None)
            if answers == [None] and answer.exists():
                answers[0] = json.loads(answer.read_bytes())

    watched = host.run(command(how, ITERATIONS), act, EROICA_WORKER_FAILURES_RAISE="1")
    assert (watched.returncode, watched.stdout, watched.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert alone.returncode == 0, alone.stderr
    (pid,) = host.workers
    worker = host.workers[pid]
    assert (worker.beats[-1].iteration, STATE_NAMES[worker.beats[-1].state]) == (ITERATIONS, "finished")
    assert worker.results[-1].status == DONE, worker.results
    capture = json.loads((host.root / "scratch" / str(pid) / "capture.json").read_bytes())
    assert json.loads(Path(capture["stacks_path"]).read_bytes())
    assert "worker/" not in str([thread["frames"] for thread in answers[0]["threads"] if thread["frames"][0][1]][1:])
    assert answers[0]["threads"], answers


@pytest.mark.jobs
def test_a_patched_training_starts_the_agent_itself(tmp_path: Path) -> None:
    host, enough = Host(tmp_path), tmp_path / "enough"
    host.close()  # nobody holds the agent's lock

    def end_once_watched(_: Host) -> None:
        if any("worker 0 is here" in log.read_text() for log in tmp_path.glob("run/log/agent-*.log")):
            enough.touch()

    many = [*command("taken-away", 100_000), str(enough)]  # as long as the agent needs to begin
    done = host.run(many, end_once_watched, EROICA_WORKER_FAILURES_RAISE="1", EROICA_JOB_END_GRACE_S="0.2")
    assert (done.returncode, done.stderr) == (0, "")
    assert enough.exists()
    end = time.monotonic() + 60
    while host.runtime.exists() and time.monotonic() < end:  # the agent takes its directory away
        time.sleep(0.05)
    assert not host.runtime.exists()


def test_modules_made_anew_are_none_that_others_see() -> None:
    import _thread
    import os

    assert pristine.Lock is not _thread.allocate_lock
    assert pristine.posix.read is not os.read
    assert sys.modules["_thread"] is _thread


def test_our_threads_are_in_the_list_as_long_as_they_work_and_are_known_by_their_stack() -> None:
    go, seen = pristine.Flag(), []
    thread = pristine.Thread(lambda: (seen.append(pristine.get_ident()), go.wait(20)))
    before = set(threading.enumerate())
    thread.start()
    while not seen:
        time.sleep(0.001)
    (ours,) = set(threading.enumerate()) - before
    assert (ours.ident, ours.name, ours.daemon, ours.is_alive()) == (seen[0], "eroica", True, True)
    assert ours not in pristine.python_threads()
    ours.join(0.01)
    assert not thread.join(0.01)
    frames = sys._current_frames()
    assert pristine.runs_ours(frames[seen[0]])
    assert not pristine.runs_ours(frames[threading.get_ident()])
    frames.clear()
    go.set()
    go.set()
    ours.join()
    assert thread.join(20)
    assert thread.join(20)
    assert set(threading.enumerate()) == before and not ours.is_alive()


def test_a_thread_that_listens_has_no_frame_until_it_hears_something() -> None:
    reading, writing = os.pipe()
    frames: list[set[int]] = []

    def hear() -> bool:
        frames.append(set(sys._current_frames()) - before - {thread.ident for thread in threading.enumerate()})
        return os.read(reading, 1) == b"+"

    before = set(sys._current_frames())
    ended: list[bool] = []
    listener = pristine.Listener(reading, hear, lambda: ended.append(True), 0.01)
    listener.start()
    assert set(sys._current_frames()) == before
    for sign in (b"+", b"+", b"-"):
        os.write(writing, sign)
    assert listener.join(20) and ended == [True]
    asked = pristine.Listener(reading, hear, lambda: ended.append(True), 30.0)
    asked.start()
    asked.ask_to_end()
    assert asked.join(20) and ended == [True] * 2
    assert frames == [set()] * 3 and set(sys._current_frames()) == before
    for handle in (reading, writing):
        os.close(handle)
