"""A worker that ended inside its window: what its shared memory tells of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from eroica.agent.roster import LocalWorker
from eroica.agent.unfinished_windows import leave_capture
from eroica.model.window import Capture
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire import beat
from eroica.wire.messages import OrderMessage

FACTS = {"global_rank": 3, "world_size": 4, "pid": os.getpid(), "training_thread_id": 77, "training_thread_ident": 78}
MS = 1_000_000
ORDER = OrderMessage(serial=1, window_id=7, kind="window", purpose="slow", first_iteration=20, last_iteration=40)


class Memory:
    """A worker that has trained for 30 iterations of 10 ms and a last one of 50."""

    def __init__(self, directory: Path) -> None:
        self.writer = beat.BeatWriter.create(directory, FACTS)
        worker = Worker(global_rank=3, pid=os.getpid(), world_size=4, host="h")
        self.local = LocalWorker(beat.BeatReader.open(self.writer.path), worker, Settings())
        self.train(*[10] * 30, 50)

    def train(self, *durations_ms: int) -> None:
        at_ms = 0
        for iteration, duration_ms in enumerate(durations_ms, 1):
            at_ms += duration_ms
            self.writer.beat(iteration, at_ms * MS, duration_ms * MS, beat.CAPTURING, 0)

    def answer(self, window_id: int = 7, status: int = beat.OPEN, kind: int = beat.WINDOW, last: int = 40) -> None:
        self.writer.answer(beat.Result(window_id, status, kind, 20, last, 0, 0, 0, ""))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    one = Memory(tmp_path)
    yield one
    one.local.close()
    one.writer.remove()


def test_the_iterations_of_an_open_window_are_left(memory: Memory, tmp_path: Path) -> None:
    memory.answer()
    assert leave_capture(memory.local, ORDER, tmp_path / "capture.json")
    capture = msgspec.json.decode((tmp_path / "capture.json").read_bytes(), type=Capture)
    assert (capture.first_iteration, capture.last_iteration) == (20, 31)
    assert [at // MS for at in capture.boundaries_ns] == [*range(200, 301, 10), 350]
    assert (capture.worker.global_rank, capture.training_thread_id, capture.trace_path) == (3, 77, "")


def test_a_window_that_was_closed_early_ends_where_it_was_closed(memory: Memory, tmp_path: Path) -> None:
    memory.answer(status=beat.CLOSED, last=25)
    assert leave_capture(memory.local, ORDER, tmp_path / "capture.json")
    capture = msgspec.json.decode((tmp_path / "capture.json").read_bytes(), type=Capture)
    assert (capture.last_iteration, [at // MS for at in capture.boundaries_ns]) == (25, [*range(200, 251, 10)])


def test_only_iterations_whose_length_is_known_count(memory: Memory, tmp_path: Path) -> None:
    memory.train(*[10] * 25, 0, *[10] * 5)
    memory.answer()
    assert leave_capture(memory.local, ORDER, tmp_path / "capture.json")
    capture = msgspec.json.decode((tmp_path / "capture.json").read_bytes(), type=Capture)
    assert (capture.first_iteration, capture.last_iteration) == (26, 31)


@pytest.mark.parametrize(
    "answer",
    [{"window_id": 6}, {"status": beat.ACCEPTED}, {"status": beat.MISSED}, {"kind": beat.PROBE}, {"last": 20}],
    ids=str,
)
def test_of_a_window_that_was_not_begun_nothing_is_left(memory: Memory, tmp_path: Path, answer: dict[str, int]) -> None:
    memory.answer(**answer)
    assert not leave_capture(memory.local, ORDER, tmp_path / "capture.json")
    assert not (tmp_path / "capture.json").exists()
