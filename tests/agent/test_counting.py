"""Counters are asked for without waiting, and names only when they are missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from eroica.agent.communication import Communication
from eroica.agent.counting import Counting
from eroica.settings import Settings


class Worker:
    """The worker's ends of both FIFOs."""

    def __init__(self, place: Path) -> None:
        self.beat_file = place / "7.beat"
        flags = os.O_RDWR | os.O_NONBLOCK
        os.mkfifo(place / "7.ask", 0o600)
        os.mkfifo(place / "7.told", 0o600)
        self.ask, self.told = os.open(place / "7.ask", flags), os.open(place / "7.told", flags)

    def question(self) -> str:
        try:
            return os.read(self.ask, 100).decode()
        except BlockingIOError:
            return ""

    def tell(self, letter: str, counts: object) -> None:
        os.write(self.told, json.dumps([letter, counts]).encode() + b"\n")


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    os.close(worker.ask)
    os.close(worker.told)


@pytest.fixture
def counting(worker: Worker) -> Iterator[Counting]:
    counting = Counting(worker.beat_file, 1.0)
    yield counting
    counting.close()


def test_a_digit_is_asked_and_its_line_taken_at_a_later_look(worker: Worker, counting: Counting) -> None:
    counting.poll(0.0, may_ask=True)
    letter = worker.question()
    assert letter.isdigit() and (counting.asked, counting.answered) == (1, 0)
    assert counting.unanswered_s(2.0) == 2.0
    worker.tell(letter, {"0": [5, 4], "1": [3, 3]})
    counting.poll(2.1, may_ask=False)
    assert (counting.answered, counting.inside) == (1, 1)
    assert [(one.group, one.entered, one.completed) for one in counting.counts] == [("#0", 5, 4), ("#1", 3, 3)]
    assert counting.unanswered_s(3.0) == 0.0


def test_a_worker_whose_counters_cannot_be_read_now_owes_nothing_and_says_nothing(
    worker: Worker, counting: Counting
) -> None:
    counting.poll(0.0, may_ask=True)
    worker.tell(worker.question(), {"0": [5, 5]})
    counting.poll(2.0, may_ask=True)
    worker.tell(worker.question(), None)
    counting.poll(2.1, may_ask=False)
    assert counting.unanswered_s(3.0) == 0.0
    assert (counting.asked, counting.answered, counting.inside) == (2, 1, 0)
    assert [(one.entered, one.completed) for one in counting.counts] == [(5, 5)]


def test_who_owes_an_answer_is_asked_again_only_after_a_while(worker: Worker, counting: Counting) -> None:
    counting.poll(0.0, may_ask=True)
    first = worker.question()
    counting.poll(2.0, may_ask=True)
    assert worker.question() == ""
    counting.poll(3.5, may_ask=True)
    again = worker.question()
    assert again and again != first
    assert counting.unanswered_s(4.0) == 4.0
    worker.tell(first, {"0": [1, 0]})
    counting.poll(4.0, may_ask=False)
    assert counting.answered == 0
    worker.tell(again, {"0": [1, 1]})
    counting.poll(4.1, may_ask=False)
    assert (counting.answered, counting.inside) == (1, 0)


def test_nobody_is_asked_while_somebody_else_asks(worker: Worker, counting: Counting) -> None:
    counting.poll(0.0, may_ask=False)
    assert worker.question() == ""


def test_names_are_asked_for_once_groups_have_none(worker: Worker, counting: Counting) -> None:
    counting.poll(0.0, may_ask=True)
    worker.tell(worker.question(), {"0": [20, 20]})
    counting.poll(5.0, may_ask=True)
    letter = worker.question()
    assert letter.isalpha() and letter.islower()
    flight = {"entries": [{"pg_id": 0, "process_group": ["4", "mesh_dp"]}]}
    groups = [{"name": "4", "description": "mesh_dp", "ranks": [0, 2], "backend": "gloo"}]
    answer = {"question": letter, "flight": flight, "process_groups": groups}
    place = worker.beat_file.with_suffix(".answer")
    place.write_text(json.dumps(answer))
    place.chmod(0o600)
    counting.poll(6.0, may_ask=False)
    assert counting.counts[0].group == "4" and counting.groups[0].ranks == (0, 2)
    counting.poll(10.0, may_ask=True)
    assert worker.question().isdigit()


def test_nonsense_costs_nothing_and_a_worker_without_the_fifo_is_left_alone(tmp_path: Path, worker: Worker) -> None:
    counting = Counting(worker.beat_file, 1.0)
    counting.poll(0.0, may_ask=True)
    os.write(worker.told, b"\xff\n[1]\n" + b"[" * 500 + b"\n")
    counting.poll(1.0, may_ask=False)
    assert counting.answered == 0
    counting.close()
    lonely = Counting(tmp_path / "8.beat", 1.0)
    lonely.poll(0.0, may_ask=True)
    lonely.poll(1.0, may_ask=True)
    assert lonely.asked == 0


def test_what_a_worker_told_holds_no_longer_when_it_listens_no_more(worker: Worker, counting: Counting) -> None:
    counting.poll(0.0, may_ask=True)
    worker.tell(worker.question(), {"0": [5, 4]})
    counting.poll(1.0, may_ask=False)
    assert counting.counts
    worker.beat_file.with_suffix(".ask").unlink()
    counting.poll(3.0, may_ask=True)
    assert counting.counts == () and counting.unanswered_s(9.0) == 0.0


def test_a_collective_that_stays_open_is_asked_about_once(worker: Worker, counting: Counting) -> None:
    def answer(now: float, counts: dict[str, list[int]]) -> str:
        counting.poll(now, may_ask=True)
        letter = worker.question()
        if letter.isdigit():
            worker.tell(letter, counts)
        counting.poll(now + 0.1, may_ask=False)
        return letter

    answer(0.0, {"0": [5, 4]})
    letter = answer(2.0, {"0": [5, 4]})
    assert letter.islower() and counting.asked == 1
    entries = [
        {"pg_id": 0, "process_group": ["0", "d"], "collective_seq_id": 6, "profiling_name": "gloo:later", "before": 9},
        {
            "pg_id": 0,
            "process_group": ["0", "d"],
            "collective_seq_id": 5,
            "profiling_name": "gloo:barrier",
            "before": 0,
        },
        {"pg_id": 0, "process_group": ["0", "d"], "collective_seq_id": 4, "retired": True, "before": 7},
    ]
    place = worker.beat_file.with_suffix(".answer")
    place.write_text(json.dumps({"question": letter, "flight": {"entries": entries}}))
    place.chmod(0o600)
    counting.poll(2.2, may_ask=False)
    assert [(one.waits_in, one.before) for one in counting.counts] == [("gloo:barrier", 0)]
    assert answer(4.0, {"0": [5, 4]}).isdigit() and counting.counts[0].before == 0, "it is asked only once"
    answer(8.0, {"0": [6, 5]})
    assert counting.counts[0].before == -1, "that is another one"
    assert answer(14.0, {"0": [6, 5]}).isdigit(), "one was open for nearly as long before"
    assert answer(19.0, {"0": [6, 5]}).islower()


def test_a_worker_that_still_learns_is_not_asked(worker: Worker) -> None:
    """Groups are made and used for the first time then, and torch's maps of counters change without a lock for us."""
    one = SimpleNamespace(
        worker=SimpleNamespace(pid=7), reader=SimpleNamespace(path=worker.beat_file), learns=True
    )  # fmt: skip
    now = [0.0]
    watched = Communication(Settings(communication=True), lambda: [one], lambda: False, lambda: now[0])  # type: ignore[list-item]
    for now[0] in (0.0, 1.0, 2.0):
        watched.poll()
    assert worker.question() == ""
    one.learns = False
    watched.poll()
    assert worker.question().isdigit()


BURNS = "import time; time.sleep(0.3)\nwhile time.process_time() < 0.4: pass\ntime.sleep(60)"
WORKS_ELSEWHERE = f"""
import subprocess, sys, threading, time
burns, starts = {BURNS!r}, "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])"
subprocess.Popen([sys.executable, "-S", "-c", starts, burns])
def work():
    while time.thread_time() < 0.3: pass
threading.Thread(target=work).start()
time.sleep(60)
"""


def test_other_threads_and_what_children_start_are_work_elsewhere() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", WORKS_ELSEWHERE], start_new_session=True)
    one = SimpleNamespace(
        worker=SimpleNamespace(pid=process.pid, global_rank=3), training_thread_id=process.pid,
        silence=SimpleNamespace(heard=12),
    )  # fmt: skip
    watched = Communication(Settings(communication=True), list, lambda: False)
    try:
        end = time.monotonic() + 15
        while time.monotonic() < end:
            told = watched._operations(0.0, one)  # type: ignore[arg-type]
            if told.elsewhere_cpu_s >= 0.65:
                break
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert told.elsewhere_cpu_s >= 0.65 and told.cpu_s < 0.3 and told.heard == 12
