"""The capture's state machine, with a profiler that only writes down what it is told."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from eroica.errors import CaptureError
from eroica.model.window import Capture
from eroica.wire import beat
from eroica.wire.beat import Order, Result
from eroica.worker.capture import IDLE, OPEN, SAVING, Capturer
from eroica.worker.sampling import StackSampler
from eroica.worker.tracer import count_events

WORKER = {
    "global_rank": 3, "local_rank": 1, "world_size": 8, "host": "here", "pid": 4, "device": "cpu",
    "training_thread_id": 4, "torch": "2.13.0",
}  # fmt: skip


class Notebook:
    """A tracer."""

    def __init__(self, fails_at: str = "", events: int = 100) -> None:
        self.calls: list[str] = []
        self.python_calls = False
        self._fails_at = fails_at
        self._events = events

    def __call__(self, python_calls: bool) -> Notebook:
        self.python_calls = python_calls
        return self

    def _do(self, name: str) -> None:
        self.calls.append(name)
        if name == self._fails_at:
            raise OSError("disk full") if name == "save" else CaptureError("the profiler refused")

    def prepare(self) -> None:
        self._do("prepare")

    def start(self) -> None:
        self._do("start")

    def stop(self) -> None:
        self._do("stop")

    def save(self, path: Path) -> int:
        self._do("save")
        path.write_text(json.dumps([{"ph": "X"}] * self._events))
        return 0

    def drop(self) -> int:
        self._do("drop")
        return 0


class Door:
    exists = True
    taken = False
    ours = False


class Desk:
    """A capturer and everything around it."""

    def __init__(self, place: Path, tracer: Notebook | None = None, patient: bool = False) -> None:
        self.place, self.tracer, self.door = place, tracer or Notebook(), Door()
        self.results: list[Result] = []
        self.saves: list[Callable[[], None]] = []
        self.patient = patient
        self.capturer = Capturer(
            WORKER, self.results.append, self.door, self._in_background, longest_s=100.0, make_tracer=self.tracer
        )  # type: ignore[arg-type]

    def _in_background(self, work: Callable[[], None]) -> threading.Thread:
        self.saves.append(work)
        if not self.patient:
            work()
        return threading.Thread()

    def order(self, first: int, last: int, kind: int = beat.WINDOW, **fields: int) -> Order:
        return Order(
            **{
                "window_id": 5, "kind": kind, "flags": 0, "first_iteration": first, "last_iteration": last,
                "max_events": 0, "sampling_hz": 0, "directory": str(self.place), **fields,
            }
        )  # type: ignore[arg-type]  # fmt: skip

    def pass_boundaries(self, first: int, last: int) -> None:
        for iteration in range(first, last + 1):
            self.capturer.boundary(iteration, iteration * 1000)

    @property
    def statuses(self) -> list[str]:
        return [beat.RESULT_NAMES[result.status] for result in self.results]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_window_is_prepared_one_iteration_early_and_covers_exactly_its_iterations(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 13), 5)
    desk.pass_boundaries(5, 8)
    assert desk.tracer.calls == []
    desk.pass_boundaries(9, 9)
    assert desk.tracer.calls == ["prepare"]
    desk.pass_boundaries(10, 12)
    assert desk.tracer.calls == ["prepare", "start"]
    assert desk.capturer.phase == OPEN
    desk.pass_boundaries(13, 13)
    assert desk.tracer.calls == ["prepare", "start", "stop", "save", "drop"]
    assert desk.statuses == ["accepted", "open", "closed", "done"]
    assert desk.capturer.phase == IDLE
    capture = msgspec.json.decode((desk.place / "capture.json").read_bytes(), type=Capture)
    assert (capture.first_iteration, capture.last_iteration) == (10, 13)
    assert capture.boundaries_ns[1:] == (11_000, 12_000, 13_000)
    assert capture.worker.global_rank == 3
    assert capture.events == desk.results[-1].events == 100


def test_an_order_for_right_now_opens_at_once(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 11), 10)
    desk.pass_boundaries(10, 11)
    assert desk.statuses == ["accepted", "open", "closed", "done"]


def test_an_order_that_comes_too_late_is_missed(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 13), 11)
    assert desk.statuses == ["missed"]
    assert "already at iteration 11" in desk.results[0].note
    assert not desk.capturer.busy


def test_iterations_that_jump_over_the_start_miss_it(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 13), 5)
    desk.capturer.boundary(12, 12_000)
    assert desk.statuses == ["accepted", "missed"]
    assert desk.tracer.calls == []


def test_a_second_order_waits_for_the_first_to_be_done(tmp_path: Path) -> None:
    desk = Desk(tmp_path, patient=True)
    desk.capturer.take(desk.order(10, 11), 10)
    desk.capturer.take(desk.order(20, 21, window_id=6), 10)
    desk.pass_boundaries(10, 11)
    assert desk.capturer.phase == SAVING
    desk.capturer.take(desk.order(20, 21, window_id=6), 11)
    desk.saves[0]()
    desk.capturer.take(desk.order(20, 21, window_id=6), 12)
    assert desk.statuses == ["accepted", "skipped", "open", "closed", "skipped", "done", "accepted"]
    assert "busy with window 5" in desk.results[1].note


def test_a_cancelled_window_leaves_nothing_running(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 13), 9)
    desk.pass_boundaries(9, 11)
    desk.capturer.take(desk.order(10, 13, kind=beat.CANCEL), 11)
    assert desk.tracer.calls == ["prepare", "start", "stop", "drop"]
    assert desk.statuses[-1] == "skipped"
    assert not gc.callbacks or all("CollectionLog" not in repr(callback) for callback in gc.callbacks)


def test_another_profiler_is_left_alone(desk: Desk) -> None:
    desk.door.taken = True
    desk.capturer.take(desk.order(10, 13), 5)
    assert desk.statuses == ["skipped"]
    desk.door.taken = False
    desk.capturer.take(desk.order(10, 13), 5)
    desk.door.taken = True
    desk.pass_boundaries(9, 13)
    assert desk.statuses == ["skipped", "accepted", "skipped"]
    assert desk.tracer.calls == []


def test_we_make_way_for_a_profiler_that_comes_later(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 13), 9)
    desk.pass_boundaries(9, 11)
    desk.capturer.make_way()
    assert desk.tracer.calls == ["prepare", "start", "stop", "drop"]
    assert desk.statuses[-1] == "skipped"
    desk.pass_boundaries(12, 14)
    assert desk.statuses[-1] == "skipped"


def test_a_profiler_in_another_thread_makes_us_end_at_the_next_boundary(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 13), 9)
    desk.pass_boundaries(9, 11)
    other = threading.Thread(target=desk.capturer.make_way)
    other.start()
    other.join()
    assert desk.tracer.calls == ["prepare", "start"]
    desk.pass_boundaries(12, 12)
    assert desk.statuses[-1] == "skipped"


@pytest.mark.parametrize("fails_at", ["prepare", "start", "stop"])
def test_a_profiler_that_refuses_fails_the_order_and_not_the_worker(tmp_path: Path, fails_at: str) -> None:
    desk = Desk(tmp_path, Notebook(fails_at))
    desk.capturer.take(desk.order(10, 11), 9)
    desk.pass_boundaries(9, 12)
    assert desk.statuses[-1] == "failed"
    assert "refused" in desk.results[-1].note
    assert desk.capturer.phase == IDLE


def test_a_full_disk_fails_the_order_and_gives_the_memory_back(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Notebook("save"))
    desk.capturer.take(desk.order(10, 11), 9)
    desk.pass_boundaries(9, 11)
    assert desk.statuses[-1] == "failed"
    assert "disk full" in desk.results[-1].note
    assert desk.tracer.calls[-1] == "drop"


def test_a_window_that_outgrows_its_budget_closes_early_and_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Notebook(events=1000))
    desk.capturer.take(desk.order(10, 11, kind=beat.PROBE), 9)
    desk.pass_boundaries(9, 11)
    desk.capturer.take(desk.order(20, 40, max_events=5000), 19)
    desk.pass_boundaries(19, 40)
    assert desk.results[-1].last_iteration == 27
    assert "event budget" in desk.results[-1].note
    capture = msgspec.json.decode((tmp_path / "capture.json").read_bytes(), type=Capture)
    assert (capture.first_iteration, capture.last_iteration, len(capture.boundaries_ns)) == (20, 27, 8)


def test_a_probe_counts_and_leaves_nothing(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 11, kind=beat.PROBE), 9)
    desk.pass_boundaries(9, 11)
    assert desk.results[-1].events == 100
    assert list(desk.place.iterdir()) == []


def test_tracing_every_python_call_is_passed_on(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 11, flags=beat.TRACE_PYTHON_CALLS), 9)
    assert desk.tracer.python_calls


def test_collections_inside_the_window_are_written_down(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 11), 10)
    desk.pass_boundaries(10, 10)
    gc.collect()
    desk.pass_boundaries(11, 11)
    gc.collect()
    capture = msgspec.json.decode((desk.place / "capture.json").read_bytes(), type=Capture)
    full = [run for run in capture.garbage_collections if run.generation == 2]
    assert len(full) == 1
    assert full[0].start_ns < full[0].end_ns
    assert full[0].thread_id == threading.get_native_id()


def test_events_of_a_trace_are_counted_from_samples_of_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(",\n".join(json.dumps({"ph": "X", "name": "x" * (i % 50), "ts": i}) for i in range(100_000)))
    assert count_events(path) == pytest.approx(100_000, rel=0.05)
    path.write_text("")
    assert count_events(path) == 0


def test_the_inside_sampler_writes_what_py_spy_would(tmp_path: Path) -> None:
    sampler = StackSampler(100)
    ready, over = threading.Event(), threading.Event()

    def a_function_of_its_own() -> None:
        ready.set()
        over.wait()

    thread = threading.Thread(target=a_function_of_its_own, name="busy")
    thread.start()
    ready.wait()
    sampler._sample()
    over.set()
    thread.join()
    sampler._sample()
    sampler._thread.start()
    sampler.stop()
    events = json.loads(sampler.save(tmp_path).read_text())
    mine = [event for event in events if event["tid"] == thread.ident]
    names = [event["name"].rpartition(".")[2] for event in mine if event["ph"] == "B"]
    assert mine[0]["name"].startswith("process ")
    assert mine[1]["name"] == f"thread ({thread.native_id}): busy"
    assert "a_function_of_its_own" in names
    assert [e["name"] for e in mine if e["ph"] == "E"] == [e["name"] for e in mine if e["ph"] == "B"][::-1]
