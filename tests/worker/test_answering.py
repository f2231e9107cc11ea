"""The thread that answers questions: silent, cheap, gone with the process."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eroica.worker.answering import digest

HEAD = """
import os, signal, sys, threading, time
from pathlib import Path
from eroica.settings import Settings
from eroica.worker.answering import Answering, has_other_threads
from eroica.worker.guard import Guard
here = Path(sys.argv[1])
guard = Guard(lambda: here / "log" / "worker.log", lambda text: None)
def say(*what): print(*what, flush=True)
"""
LISTENING = """
answering = Answering(here, guard.run)
assert answering.start()
say(threading.active_count(), len(threading.enumerate()), len(os.listdir("/proc/self/task")))
"""


class Program:
    """A Python with something of ours in it, that talks line by line."""

    def __init__(self, place: Path, body: str) -> None:
        self.place = place
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEAD + body, str(place)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self.process.pid

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err

    def ask(self, data: bytes, limit_s: float = 5.0) -> dict[str, Any] | None:
        place = self.place / f"{self.pid}.answer"
        place.unlink(missing_ok=True)
        handle = os.open(self.place / f"{self.pid}.ask", os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, data)
        os.close(handle)
        end = time.monotonic() + limit_s
        while not place.exists() and time.monotonic() < end:
            time.sleep(0.005)
        return json.loads(place.read_text()) if place.exists() else None


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.process.kill()
        program.process.communicate()


def begin(programs: list[Program], place: Path, body: str) -> Program:
    programs.append(Program(place, body))
    return programs[-1]


def test_it_answers_a_letter_with_what_every_thread_does(tmp_path: Path, programs: list[Program]) -> None:
    body = "def waiting_for_more(): return input()\n" + LISTENING + "waiting_for_more()\nanswering.stop()\n"
    program = begin(programs, tmp_path, body)
    assert program.line() == "1 1 2"  # in no list of Python's, yet there
    for _ in range(20):  # it may still be on its way into the function
        answer = program.ask(b"..Q")
        assert answer is not None and answer["question"] == "Q" and answer["notes"] == []
        (main,) = answer["threads"]
        assert main["thread_id"] == program.pid and main["name"] == "MainThread"
        if "say" not in [name for name, _, _ in main["frames"]]:
            break
    assert [name for name, _, _ in main["frames"]] == ["<module>", "waiting_for_more"]
    assert answer["thread_names"] == {str(program.pid): "MainThread"}
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {".ask": 0o600, ".answer": 0o600}
    program.process.stdin.write("\n")
    assert program.end() == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_garbage_gets_no_answer_and_a_flood_keeps_it_no_busier(tmp_path: Path, programs: list[Program]) -> None:
    program = begin(programs, tmp_path, LISTENING + "input()\nanswering.stop()\n")
    program.line()
    assert program.ask(b"\x00\xff 123\n", limit_s=0.5) is None
    handle = os.open(tmp_path / f"{program.pid}.ask", os.O_WRONLY | os.O_NONBLOCK)
    stat_before = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        try:
            os.write(handle, b"Z" * 4096)
        except BlockingIOError:
            time.sleep(0.01)
    os.close(handle)
    stat_after = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
    assert sum(int(stat_after[i]) - int(stat_before[i]) for i in (11, 12)) <= 10  # jiffies of 10 ms
    began = time.monotonic()
    program.process.stdin.write("\n")
    assert program.end() == (0, "", "") and time.monotonic() - began < 5


def test_a_process_ends_as_ever_with_the_thread_asleep(tmp_path: Path, programs: list[Program]) -> None:
    program = begin(programs, tmp_path, LISTENING + "raise SystemExit(3)\n")
    assert program.line() == "1 1 2"
    assert program.end() == (3, "", "")


def test_a_forked_child_has_neither_thread_nor_fifo_and_can_have_its_own(
    tmp_path: Path, programs: list[Program]
) -> None:
    body = LISTENING + (
        "say(sum(os.path.realpath(e.path).endswith('.ask') for e in os.scandir('/proc/self/fd')))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    answering.abandon()\n"
        "    say(sum(os.path.realpath(e.path).endswith('.ask') for e in os.scandir('/proc/self/fd')))\n"
        "    own = Answering(here, guard.run)\n"
        "    say(own.start()); own.stop(); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "say('back'); input(); answering.stop()\n"
    )
    program = begin(programs, tmp_path, body)
    program.line()
    assert [program.line() for _ in range(4)] == ["2", "0", "True", "back"]
    assert program.ask(b"A") is not None
    program.process.stdin.write("\n")
    assert program.end() == (0, "", "")


def test_a_program_that_closes_all_its_files_keeps_what_it_opens_then(tmp_path: Path, programs: list[Program]) -> None:
    body = LISTENING + (
        "os.closerange(3, 100)\n"
        "read, write = os.pipe(); os.write(write, b'mine'); say('closed')\n"
        "input(); say(os.read(read, 10)); answering.stop(); say(os.fstat(read).st_size)\n"
    )
    program = begin(programs, tmp_path, body)
    program.line()
    assert program.line() == "closed"
    with contextlib.suppress(OSError):  # it may have ended already
        program.ask(b"A", limit_s=1.0)
    program.process.stdin.write("\n")
    status, out, err = program.end()
    assert (status, out.split(), err) == (0, ["b'mine'", "0"], "")


def test_no_fifo_no_thread_no_harm(tmp_path: Path, programs: list[Program]) -> None:
    program = begin(programs, tmp_path / "missing", "a = Answering(here, guard.run)\nsay(a.start()); a.stop()\n")
    assert program.end() == (0, "False\n", "")


def test_a_process_of_one_thread_stays_one(tmp_path: Path, programs: list[Program]) -> None:
    assert begin(programs, tmp_path, "say(has_other_threads())\n").end() == (0, "False\n", "")


def entry(group: str, sequence: int, retired: bool, **more: Any) -> dict[str, Any]:
    return {
        "process_group": [group, ""], "pg_id": int(group), "collective_seq_id": sequence, "retired": retired,
        "profiling_name": "gloo:all_reduce", "time_created_ns": sequence, "state": "scheduled", "thread_name": "x",
        "input_sizes": [[4], [5]], **more,
    }  # fmt: skip


def test_of_the_recorder_only_what_is_open_or_recent_is_told() -> None:
    entries = [entry("0", number, number not in (3, 2000)) for number in range(1, 2001)]
    entries += [entry("1", 1, False, state="completed")]
    found = digest(json.dumps({"entries": entries, "pg_status": {"0": {}}, "version": "2.10"}).encode())
    assert found is not None and found["pg_status"] == {"0": {}}
    kept = [(one["process_group"][0], one["collective_seq_id"]) for one in found["entries"]]
    assert kept == [("0", 3), *(("0", number) for number in range(1969, 2001)), ("1", 1)]
    assert found["entries"][0]["input_sizes"] == [[4]] and "thread_name" not in found["entries"][0]
    assert digest(b"") is None


def test_a_quiet_group_keeps_its_last_entries_beside_a_busy_one() -> None:
    entries = [entry("9", number, True) for number in range(1, 8)]
    entries += [entry("2", number, True) for number in range(1, 1500)]
    found = digest(json.dumps({"entries": entries}).encode())
    assert found is not None
    kept = [(one["process_group"][0], one["collective_seq_id"]) for one in found["entries"]]
    assert kept == [*(("9", number) for number in range(1, 8)), *(("2", number) for number in range(1468, 1500))]
