"""What witnesses say is bounded, validated and reads like pattern keys."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eroica.agent.witnesses import (
    ask_py_spy,
    ask_worker,
    fitting,
    stack_of,
)
from eroica.errors import UnavailableError
from eroica.model.look import HostLooks, ProcessLook, ThreadLook, WorkerLook
from eroica.model.worker import Worker


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


SPIED = [
    {
        "thread_name": "MainThread", "os_thread_id": 7, "owns_gil": True, "active": True, "pid": 7, "thread_id": 99,
        "frames": [
            {"name": "Queue.get", "filename": "/usr/lib/python3.11/queue.py", "line": 171, "is_entry": False},
            {"name": "<module>", "filename": "/home/u/project/train.py", "line": 9},
        ],
    },
    {
        "thread_name": None, "os_thread_id": None, "owns_gil": False,
        "frames": [{"name": "Thread._live", "filename": "/x/site-packages/eroica/worker/pristine.py", "line": 1}],
    },
]  # fmt: skip


def test_py_spy_tells_stacks_outermost_first_and_who_owns_the_lock(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text(json.dumps(SPIED))
    (thread,) = ask_py_spy(script(tmp_path / "spy", f"cat {tmp_path}/dump"), 7, 5.0)
    assert thread.stack == ("<module> (project/train.py:9)", "Queue.get (queue.py:171)")
    assert (thread.name, thread.thread_id, thread.holds_interpreter_lock) == ("MainThread", 7, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo 'Error: Permission Denied' >&2; exit 1", "Permission"),
        ("echo '{}'", "strange"),
        ("echo '[[[[['", "strange"),
        ("sleep 9", "within"),
    ],
)
def test_a_py_spy_that_cannot_tell_gives_a_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UnavailableError, match=reason):
        ask_py_spy(script(tmp_path / "spy", text), 7, 0.5)


def test_hostile_frames_are_made_printable_and_short() -> None:
    (frame,) = stack_of([("\x1b[2J" + "x" * 5000, "/a/b.py", -4)])
    assert frame.startswith("?[2Jxxx") and len(frame) < 400 and frame.endswith("(a/b.py)")
    assert len(stack_of([("f", "/a/b.py", 1)] * 9999)) == 128


class Answerer:
    """Somebody who listens on a worker's FIFO and says what he likes."""

    def __init__(self, beat_file: Path, text: Any) -> None:
        self.ask, self.place, self.text = beat_file.with_suffix(".ask"), beat_file.with_suffix(".answer"), text
        os.mkfifo(self.ask, 0o600)
        self.handle = os.open(self.ask, os.O_RDWR)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        letter = os.read(self.handle, 1).decode()
        text = self.text if isinstance(self.text, str) else json.dumps({"question": letter, **self.text})
        self.place.write_text(text)

    def close(self) -> None:
        os.write(self.handle, b"A")
        self.thread.join()
        os.close(self.handle)


def asked(tmp_path: Path, text: Any) -> Any:
    beat_file = tmp_path / "5.beat"
    answerer = Answerer(beat_file, text)
    try:
        return ask_worker(beat_file, 3, 0.5)
    finally:
        answerer.close()


def test_an_answer_is_taken_with_what_is_wrong_in_it_noted(tmp_path: Path) -> None:
    threads = [{"ident": 1, "thread_id": 8, "name": "feeder", "frames": [["put", "/a/b/c.py", 3]]}]
    told = asked(tmp_path, {"flight": {"entries": 7}, "threads": threads, "thread_names": {"8": "feeder", "x": "y"}})
    assert told.threads == (ThreadLook(name="feeder", thread_id=8, stack=("put (b/c.py:3)",)),)
    assert told.names == {8: "feeder"} and told.flight is None and "Flight Recorder" in told.notes[0]


@pytest.mark.parametrize(
    "text",
    ["", "null", "{", '{"question": 4}', '{"question": "D", "threads": [{"frames": [[1, 2]]}]}', "[" * 100_000],
)
def test_a_foreign_answer_gives_a_reason(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnavailableError):
        asked(tmp_path, text)


def test_links_and_ordinary_files_in_the_place_of_a_fifo_are_not_touched(tmp_path: Path) -> None:
    beat_file, victim = tmp_path / "5.beat", tmp_path / "victim"
    victim.write_text("precious")
    ask = beat_file.with_suffix(".ask")
    for put in (lambda: ask.symlink_to(victim), lambda: ask.write_text("precious")):
        put()
        with pytest.raises(UnavailableError):
            ask_worker(beat_file, 0, 0.2)
        ask.unlink()
    with pytest.raises(UnavailableError, match="nobody"):
        ask_worker(beat_file, 0, 0.2)
    assert victim.read_text() == "precious"


def test_a_fifo_in_the_place_of_the_answer_does_not_hold_us(tmp_path: Path) -> None:
    beat_file = tmp_path / "5.beat"
    os.mkfifo(beat_file.with_suffix(".ask"), 0o600)
    os.mkfifo(beat_file.with_suffix(".answer"), 0o600)
    handle = os.open(beat_file.with_suffix(".ask"), os.O_RDWR)
    began = time.monotonic()
    with pytest.raises(UnavailableError):
        ask_worker(beat_file, 0, 0.3)
    assert time.monotonic() - began < 2.0
    os.close(handle)


def test_looks_of_many_large_workers_fit_their_limit() -> None:
    stack = tuple(f"function_number_{i} (package/module.py:{i})" for i in range(60))
    threads = tuple(ThreadLook(name=f"t{i}", thread_id=i, stack=stack) for i in range(40))
    process = ProcessLook(pid=1, threads=threads, source="py-spy")
    look = WorkerLook(worker=Worker(global_rank=0), training_thread_id=30, process=process, children=(process,) * 8)
    looks = fitting(HostLooks(look_id=1, host="h", first=(look,) * 8, second=(look,) * 8), limit=1_000_000)
    assert any("left out" in note for note in looks.notes)
    assert looks.first[0].process.threads[0].thread_id == 30
    assert [child.pid for child in looks.first[0].children] == [1] * 8, "they live, or it would read as their death"
    assert not any(child.threads for child in looks.first[0].children)
    small = HostLooks(look_id=1, host="h", first=(look,))
    assert fitting(small, limit=10_000_000) is small
