"""The capture's state machine, with a profiler that only writes down what it is told."""

from __future__ import annotations

import _thread
import gc
import itertools
import json
import queue
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eroica.errors import CaptureError
from eroica.model.window import Capture
from eroica.settings import Settings
from eroica.wire import beat
from eroica.wire.beat import Order, Result
from eroica.wire.places import PROBE_FILE
from eroica.worker import capture, surroundings
from eroica.worker.capture import IDLE, OPEN, PARKED, SAVING, STANDING, Capturer
from eroica.worker.hooks import Guest
from eroica.worker.session import Session, StackSampler

pytest.importorskip("torch")  # as in any job: it is asked what it knows

STOPPED = ["prepare", "start", "pause", "stop"]
WORKER = {
    "global_rank": 3, "local_rank": 1, "world_size": 8, "host": "here", "pid": 4, "device": "cpu",
    "device_uuid": "", "training_thread_id": 4, "torch": "2.13.0",
}  # fmt: skip


class Notebook:
    """A tracer."""

    def __init__(self, fails_at: str = "", events: int = 100) -> None:
        self.calls: list[str] = []
        self.inputs = self.on_device = False
        self.waits = True
        self.named = ""
        self._fails_at = fails_at
        self._events = events

    def __call__(self, inputs: bool, operators: bool = True) -> Notebook:
        self.inputs = inputs
        return self

    @property
    def records_inputs(self) -> bool:
        return self.inputs and not self.on_device

    def _do(self, name: str) -> None:
        self.calls.append(name)
        if name == self._fails_at:
            raise OSError("disk full") if name == "save" else CaptureError("the profiler refused")

    def prepare(self) -> None:
        self._do("prepare")

    def start(self) -> None:
        self._do("start")

    def pause(self) -> None:
        self._do("pause")

    def stop(self) -> None:
        self._do("stop")

    def save(self, path: Path) -> int:
        self._do("save")
        path.write_text(json.dumps([*[{"ph": "X"}] * self._events, *[{"name": self.named}] * bool(self.named)]))
        return 0

    def drop(self) -> int:
        self._do("drop")
        return 0


def directly(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class Door:
    exists = True
    taken = False
    ours = 0
    used = True


class Desk:
    """A capturer and everything around it."""

    def __init__(
        self,
        place: Path,
        tracer: Notebook | None = None,
        patient: bool = False,
        settings: Settings = Settings(),  # noqa: B008 - frozen
    ) -> None:
        self.place, self.tracer, self.door = place, tracer or Notebook(), Door()
        self.results: list[Result] = []
        self.saves: list[Callable[[], None]] = []
        self.patient = patient
        self.capturer = Capturer(
            WORKER, self.results.append, self.door, self._in_background, directly, settings, make_tracer=self.tracer
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

    def record(self, until: int, last: int = 11) -> None:
        """A window from iteration 10 to this last one, ordered at 9; go on as far as `until`."""
        self.capturer.take(self.order(10, last), 9)
        self.pass_boundaries(9, until)

    def captured(self) -> Capture:
        return msgspec.json.decode((self.place / "capture.json").read_bytes(), type=Capture)

    @property
    def statuses(self) -> list[str]:
        return [beat.RESULT_NAMES[result.status] for result in self.results]


class Recorder:
    """Collectives as torch's recorder tells of them: number to whether it has ended."""

    def __init__(self) -> None:
        self.ended: dict[int, bool] = {}
        self.created_ns: dict[int, int] = {}
        self.kept = 2000
        self.backend = "gloo"
        self._last_ended = -1

    def enqueue(self, *numbers: int) -> None:
        for number in numbers:
            self.ended[number], self.created_ns[number] = False, time.time_ns()

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.ended[number], self._last_ended = True, number

    def __call__(self, name: str, collectives: bool = True, active: bool = False) -> bytes:
        counts = {"last_completed_collective": str(self._last_ended), "last_enqueued_collective": str(max(self.ended))}
        entries = [
            {
                "time_created_ns": self.created_ns[number],
                "retired": ended,
                "profiling_name": f"{self.backend}:all_reduce",
            }
            for number, ended in self.ended.items()
        ]
        return json.dumps({"pg_status": {"0": counts}, "entries": entries[-self.kept :]}).encode()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    fake = Recorder()
    monkeypatch.setattr(surroundings, "_dump", fake)
    monkeypatch.setattr(capture, "_PATIENCE_S", 0.0)
    return fake


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
    desk.pass_boundaries(13, 15)
    assert desk.tracer.calls == [*STOPPED, "save", "drop"]
    assert desk.statuses == ["accepted", "open", "closed", "done"]
    assert desk.capturer.phase == IDLE
    found = desk.captured()
    assert (found.first_iteration, found.last_iteration) == (10, 13)
    assert found.boundaries_ns[1:] == (11_000, 12_000, 13_000)
    assert found.worker.global_rank == 3
    assert found.events == desk.results[-1].events == 100


def test_an_order_that_comes_too_late_is_missed(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 13), 11)
    assert desk.statuses == ["missed"]
    assert "already at iteration 11" in desk.results[0].note
    assert not desk.capturer.busy


def test_a_second_order_waits_for_the_first_to_be_done(tmp_path: Path) -> None:
    desk = Desk(tmp_path, patient=True)
    desk.capturer.take(desk.order(10, 11), 10)
    desk.capturer.take(desk.order(20, 21, window_id=6), 10)
    desk.pass_boundaries(10, 13)
    assert desk.capturer.phase == SAVING
    desk.capturer.take(desk.order(20, 21, window_id=6), 13)
    desk.saves[0]()
    desk.capturer.take(desk.order(20, 21, window_id=6), 14)
    assert desk.statuses == ["accepted", "skipped", "open", "closed", "skipped", "done", "accepted"]
    assert "busy with window 5" in desk.results[1].note


def test_a_cancelled_window_leaves_nothing_running(desk: Desk) -> None:
    desk.record(11, last=13)
    desk.capturer.take(desk.order(10, 13, kind=beat.CANCEL), 11)
    assert desk.tracer.calls == [*STOPPED, "drop"]
    assert desk.statuses[-1] == "skipped"
    assert not gc.callbacks or all("CollectionLog" not in repr(callback) for callback in gc.callbacks)


class Late(Exception):
    """What a signal's handler of the user's raises."""


@pytest.mark.parametrize("at", ["pause", "stop", "drop", "answer"])
@pytest.mark.parametrize("way", ["cancelled", "given up"])
def test_a_dismissal_that_a_signal_handler_interrupts_is_done_again(tmp_path: Path, at: str, way: str) -> None:
    desk = Desk(tmp_path)
    desk.capturer.take(desk.order(2, 6), 0)
    desk.pass_boundaries(1, 3)
    assert desk.capturer.phase == OPEN
    handled: list[str] = []

    def late(name: str) -> None:
        if name == at and not handled:
            handled.append(name)
            raise Late

    note, answer = desk.tracer._do, desk.results.append
    desk.tracer._do = lambda name: (note(name), late(name))  # type: ignore[method-assign,assignment]
    desk.capturer._answer = lambda result: (answer(result), late("answer"))  # type: ignore[assignment,func-returns-value]
    with pytest.raises(Late):
        if way == "cancelled":
            desk.capturer.take(desk.order(2, 6, kind=beat.CANCEL), 3)
        else:
            desk.capturer.give_up("iterations cannot be told apart")
            desk.pass_boundaries(4, 4)
    desk.pass_boundaries(5, 30)
    assert handled == [at] and desk.capturer.phase == IDLE and desk.saves == []
    assert set(desk.statuses[2:]) == {"skipped"} and "save" not in desk.tracer.calls
    desk.capturer.take(desk.order(40, 42), 30)
    desk.pass_boundaries(38, 50)
    assert desk.statuses[-1] == "done"


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
    desk.record(11, last=13)
    desk.capturer.make_way()
    assert desk.tracer.calls == [*STOPPED, "drop"]
    assert desk.statuses[-1] == "skipped"
    desk.pass_boundaries(12, 14)
    assert desk.statuses[-1] == "skipped"


def test_a_profiler_in_another_thread_makes_us_end_at_the_next_boundary(desk: Desk) -> None:
    desk.record(11, last=13)
    other = threading.Thread(target=desk.capturer.make_way)
    other.start()
    other.join()
    assert desk.tracer.calls == ["prepare", "start"]
    desk.pass_boundaries(12, 12)
    assert desk.statuses[-1] == "skipped"


@pytest.mark.parametrize("fails_at", ["prepare", "start", "stop", "save"])
def test_a_profiler_that_refuses_and_a_full_disk_fail_the_order_and_not_the_worker(
    tmp_path: Path, fails_at: str
) -> None:
    desk = Desk(tmp_path, Notebook(fails_at))
    desk.record(13)
    assert desk.statuses[-1] == "failed" and desk.capturer.phase == IDLE
    assert ("disk full" if fails_at == "save" else "refused") in desk.results[-1].note
    assert desk.tracer.calls[-1] == "drop" or fails_at != "save"  # the memory is given back


@pytest.mark.parametrize(
    ("longer_s", "grows", "last"),
    [
        pytest.param(0.1, 800_000, 49, id="more events than any window may hold"),
        pytest.param(0.0, 800_000, 60, id="memory that the training keeps, at its usual pace"),
        pytest.param(0.1, 0, 60, id="longer iterations alone"),
    ],
)
def test_a_window_with_far_more_events_than_the_probe_saw_closes_by_the_memory_and_time_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longer_s: float, grows: int, last: int
) -> None:
    """An iteration may make ten times as many from one moment to the next: nobody tells while they are recorded."""
    desk = Desk(tmp_path, Notebook(events=100), settings=Settings(hard_window_events=50_000))
    desk.capturer.take(desk.order(10, 11, kind=beat.PROBE), 9)
    pass_in_time(desk, monkeypatch, {iteration: 0.01 * iteration for iteration in range(9, 14)})
    resident = itertools.count(500_000_000, grows)
    monkeypatch.setattr("eroica.worker.capture.memory_bytes", lambda: next(resident))
    desk.capturer.take(desk.order(20, 60, max_events=5000), 19)
    pass_in_time(desk, monkeypatch, {iteration: (0.01 + longer_s) * iteration for iteration in range(19, 63)})
    assert desk.results[-1].last_iteration == last
    assert ("event budget" in desk.results[-1].note) == (last < 60)


def test_a_window_is_closed_at_the_next_boundary_where_the_job_is_told_to_end(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.capturer.take(desk.order(10, 30), 7)
    desk.pass_boundaries(8, 14)
    desk.capturer.take(desk.order(10, 30, beat.CLOSE), 14)
    desk.pass_boundaries(15, 18)
    assert desk.statuses[-1] == "done" and desk.results[-1].last_iteration == 15
    assert "the job is told to end" in desk.results[-1].note


def pass_in_time(desk: Desk, monkeypatch: pytest.MonkeyPatch, ends_s: dict[int, float]) -> None:
    """Let iterations end at these seconds."""
    now_s = 0.0
    monkeypatch.setattr("eroica.worker.session.monotonic_ns", lambda: round(now_s * 1e9))
    for iteration, now_s in ends_s.items():
        desk.capturer.boundary(iteration, round(now_s * 1e9))


@pytest.mark.parametrize(
    ("name", "note"),
    [("process_groups", "no process groups"), ("thread_names", "no thread names"), ("flight_dump", "no flight rec")],
)
def test_a_torch_that_cannot_be_asked_costs_a_note_and_not_the_window(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str, note: str
) -> None:
    def renamed() -> None:
        raise AttributeError("no attribute '_world'")

    monkeypatch.setattr(surroundings, name, renamed)
    desk.record(13)
    assert desk.statuses[-1] == "done"
    assert desk.tracer.calls[-1] == "drop"
    found = desk.captured()
    assert (found.process_groups, found.flight_path) == ((), "")
    assert any(line.startswith(note) and "'_world'" in line for line in found.notes)


def test_a_sampler_that_fails_prints_nothing_and_says_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sampled = threading.Event()

    def fails(_sampler: StackSampler) -> None:
        sampled.set()
        raise KeyError("no such frame")

    monkeypatch.setattr(StackSampler, "_sample", fails)
    desk.capturer.take(desk.order(10, 11, sampling_hz=100), 9)
    desk.pass_boundaries(9, 10)
    assert sampled.wait(10)
    desk.pass_boundaries(11, 13)
    found = desk.captured()
    assert any("stacks ended early: KeyError: 'no such frame'" in note for note in found.notes)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("task", "is_main"), [(0, True), (-1, False)])
def test_in_torchs_own_thread_of_a_backward_pass_the_main_thread_is_the_one_that_trains(
    monkeypatch: pytest.MonkeyPatch, task: int, is_main: bool
) -> None:
    inner = types.SimpleNamespace(_current_graph_task_id=lambda: task)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(_C=inner))  # type: ignore[arg-type]
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    _thread.start_new_thread(lambda: told.put(surroundings.training_thread()), ())
    main = threading.main_thread()
    assert surroundings.training_thread() == main.native_id
    assert (told.get(timeout=5) == main.native_id) == is_main


def probe_and_window(desk: Desk, first: int) -> tuple[bool, bool]:
    """Whether the probe recorded inputs, and whether the window did."""
    inputs = []
    for at, last, kind in ((first, first + 1, beat.PROBE), (first + 10, first + 12, beat.WINDOW)):
        desk.capturer.take(desk.order(at, last, kind=kind), at - 1)
        inputs.append(desk.tracer.inputs)
        desk.pass_boundaries(at - 1, last + 3)
        assert desk.statuses[-1] == "done"
    return inputs[0], inputs[1]


@pytest.mark.parametrize(
    ("named", "events", "world_size", "inputs"),
    [
        ("c10d::send", 100, 8, True),
        ("c10d::recv_", 100, 8, True),
        ("c10d::allreduce_", 100, 8, False),
        ("c10d::send", 100, 2, False),
        ("c10d::send", 250_000, 8, False),
    ],
    ids=["sends", "receives", "neither", "only one to send to", "too many events"],
)
def test_the_next_probe_records_inputs_once_sends_to_several_were_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, events: int, world_size: int, inputs: bool
) -> None:
    monkeypatch.setitem(WORKER, "world_size", world_size)
    tracer = Notebook(events=events)
    tracer.named = named
    desk = Desk(tmp_path, tracer)
    assert probe_and_window(desk, 10) == (False, False)
    assert not (tmp_path / PROBE_FILE).exists()
    assert probe_and_window(desk, 40) == (inputs, False)
    assert (tmp_path / PROBE_FILE).exists() == inputs


def test_collections_inside_the_window_are_written_down(desk: Desk) -> None:
    desk.capturer.take(desk.order(10, 11), 10)
    desk.pass_boundaries(10, 10)
    gc.collect()
    desk.pass_boundaries(11, 11)
    gc.collect()
    desk.pass_boundaries(12, 13)
    found = desk.captured()
    full = [run for run in found.garbage_collections if run.generation == 2]
    assert len(full) == 1
    assert full[0].start_ns < full[0].end_ns
    assert full[0].thread_id == threading.get_native_id()


def park_with_an_open_collective(desk: Desk, recorder: Recorder) -> None:
    """Order and pass through a window of one iteration; collective 2 is open at its end."""
    recorder.enqueue(1, 2)
    recorder.end(1)
    desk.record(11)


def test_a_window_is_parked_at_its_end_and_closed_two_iterations_later(desk: Desk, recorder: Recorder) -> None:
    recorder.enqueue(1)
    recorder.end(1)
    desk.record(12)
    assert desk.capturer.phase == PARKED
    assert desk.tracer.calls == ["prepare", "start", "pause"]
    assert desk.statuses == ["accepted", "open", "closed"]
    desk.pass_boundaries(13, 13)
    assert desk.tracer.calls == [*STOPPED, "save", "drop"]
    assert desk.statuses[-1] == "done"


def test_the_profiler_is_not_stopped_while_a_collective_is_open(desk: Desk, recorder: Recorder) -> None:
    park_with_an_open_collective(desk, recorder)
    desk.pass_boundaries(12, 18)
    assert "stop" not in desk.tracer.calls
    recorder.end(2)
    desk.pass_boundaries(19, 19)
    assert desk.statuses[-1] == "done"
    found = desk.captured()
    assert (found.first_iteration, found.last_iteration) == (10, 11)


def test_a_profiler_whose_collective_never_ends_is_left_standing(desk: Desk, recorder: Recorder) -> None:
    park_with_an_open_collective(desk, recorder)
    desk.pass_boundaries(12, 1000)
    assert "stop" not in desk.tracer.calls
    assert desk.capturer.phase == STANDING
    assert desk.statuses == ["accepted", "open", "closed", "failed"]
    assert "stayed open" in desk.results[-1].note
    desk.capturer.take(desk.order(1100, 1101, window_id=6), 1000)
    assert desk.statuses[-1] == "skipped"
    assert "still stands" in desk.results[-1].note
    recorder.end(2)
    desk.pass_boundaries(1001, 2100)
    assert desk.tracer.calls == [*STOPPED, "drop"]
    desk.capturer.take(desk.order(2200, 2201, window_id=8), 2100)
    assert desk.statuses[-2:] == ["skipped", "accepted"]


@pytest.mark.parametrize("last", [10, 11])
def test_a_window_cancelled_with_a_collective_open_is_answered_at_once_and_stopped_later(
    desk: Desk, recorder: Recorder, last: int
) -> None:
    recorder.enqueue(1)
    desk.record(last)
    desk.capturer.take(desk.order(10, 11, kind=beat.CANCEL), last)
    assert desk.statuses[-1] == "skipped"
    assert desk.tracer.calls == ["prepare", "start", "pause"]
    answers = len(desk.results)
    recorder.end(1)
    desk.pass_boundaries(last + 1, last + 2)
    assert desk.tracer.calls == [*STOPPED, "drop"]
    assert (desk.capturer.phase, len(desk.results)) == (IDLE, answers)


def test_a_failure_of_ours_with_a_collective_open_stops_nothing(desk: Desk, recorder: Recorder) -> None:
    recorder.enqueue(1)
    desk.record(10)
    assert not desk.capturer.collapse("no such luck")
    assert desk.tracer.calls == ["prepare", "start", "pause"]
    assert desk.statuses[-1] == "failed"
    answers = len(desk.results)
    recorder.end(1)
    assert any(desk.capturer.collapse("no such luck") for _ in range(4))
    assert desk.tracer.calls == [*STOPPED, "drop"]
    assert len(desk.results) == answers


def test_a_failure_in_another_thread_leaves_the_profiler_to_its_own(desk: Desk) -> None:
    desk.record(10, last=13)
    done: list[bool] = []
    other = threading.Thread(target=lambda: done.append(desk.capturer.collapse("no such luck")))
    other.start()
    other.join()
    assert (done, desk.tracer.calls) == ([False], ["prepare", "start"])
    assert desk.capturer.collapse("no such luck")
    assert desk.tracer.calls == [*STOPPED, "drop"]
    assert desk.capturer.collapse("no such luck")


def test_a_users_profiler_while_a_window_is_parked_gets_its_place_and_the_window_is_kept(
    desk: Desk, recorder: Recorder
) -> None:
    park_with_an_open_collective(desk, recorder)
    recorder.end(2)
    desk.capturer.make_way()
    assert desk.tracer.calls == [*STOPPED, "save", "drop"]
    assert desk.statuses[-1] == "done"


@pytest.mark.parametrize("last", [10, 11])
def test_a_users_profiler_does_not_make_us_stop_ours_under_an_open_collective(
    desk: Desk, recorder: Recorder, last: int
) -> None:
    recorder.enqueue(1)
    desk.record(last)
    desk.capturer.make_way()
    assert desk.tracer.calls == ["prepare", "start", "pause"]
    assert desk.statuses.count("skipped") == 1
    recorder.end(1)
    desk.capturer.make_way()
    assert desk.tracer.calls[-2:] == ["stop", "drop"]
    assert desk.statuses.count("skipped") == 1


def test_inside_a_backward_pass_the_profiler_is_let_be(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.record(11, last=13)
    inside = [True]
    monkeypatch.setattr(surroundings, "in_backward", lambda: inside[0])
    desk.capturer.give_up("the iteration pattern changed")
    assert not desk.capturer.collapse("no such luck")
    assert desk.tracer.calls == ["prepare", "start"]
    inside[0] = False
    desk.pass_boundaries(12, 12)
    assert desk.tracer.calls == [*STOPPED, "drop"]
    assert desk.results[-1].note == "the iteration pattern changed"


def test_a_users_profiler_waits_once_for_collectives_that_stay_open(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch calls us twice for it: when it is prepared and when it starts."""
    looks: list[None] = []
    monkeypatch.setattr(Session, "settled", lambda session: bool(looks.append(None)))
    monkeypatch.setattr(capture, "_PATIENCE_S", 0.05)
    desk.record(11, last=13)
    desk.capturer.make_way()
    assert len(looks) > 2
    looks.clear()
    desk.capturer.make_way()
    assert len(looks) == 2


def test_a_parked_window_is_saved_when_the_process_ends(desk: Desk, recorder: Recorder) -> None:
    park_with_an_open_collective(desk, recorder)
    recorder.end(2)
    desk.capturer.let_go("the training ended")
    assert desk.statuses[-1] == "done"
    assert (desk.place / "capture.json").exists()


@pytest.mark.parametrize(("iterations", "status"), [(1, "skipped"), (2, "done"), (5, "done")])
def test_an_open_window_that_the_process_s_end_cuts_off_is_saved(desk: Desk, iterations: int, status: str) -> None:
    desk.record(10 + iterations, last=30)
    desk.capturer.let_go("the training ended")
    assert desk.statuses[-1] == status
    if status == "done":
        found = desk.captured()
        assert (found.first_iteration, found.last_iteration) == (10, 10 + iterations)
        assert f"closed after {iterations} iterations: the training ended" in found.notes


def test_a_process_that_can_start_no_more_threads_saves_all_the_same(
    desk: Desk, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(work: Callable[[], None]) -> threading.Thread:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    park_with_an_open_collective(desk, recorder)
    recorder.end(2)
    monkeypatch.setattr(desk.capturer, "_in_background", refuse)
    desk.capturer.let_go("the training ended")
    assert desk.statuses[-1] == "done"


@pytest.mark.parametrize("last", [10, 11])
def test_a_process_that_ends_with_a_collective_open_ends_with_its_profiler(
    desk: Desk, recorder: Recorder, last: int
) -> None:
    recorder.enqueue(1)
    desk.record(last)
    desk.capturer.let_go("the training ended")
    assert desk.tracer.calls == ["prepare", "start", "pause"]
    assert (desk.statuses[-1], desk.results[-1].note) == ("skipped", "the training ended")


@pytest.mark.parametrize("last", [9, 10, 11])
@pytest.mark.parametrize("failing", [False, True])
def test_a_process_that_ends_while_its_device_works_does_not_wait_for_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, last: int, failing: bool
) -> None:
    def works() -> bool:
        if failing:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return False

    monkeypatch.setattr(surroundings, "device_idle", works)
    monkeypatch.setattr(capture, "_PATIENCE_S", 0.0)
    desk.tracer.on_device = True
    desk.record(last)
    desk.capturer.let_go("the training ended")
    assert "stop" not in desk.tracer.calls
    assert ("pause" in desk.tracer.calls) == (last > 9)
    assert (desk.statuses[-1], desk.results[-1].note) == ("skipped", "the training ended")


@pytest.mark.parametrize(("last", "status"), [(9, "skipped"), (10, "skipped"), (11, "done")])
def test_a_process_that_ends_with_its_device_at_rest_stops_the_profiler_without_waiting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, last: int, status: str
) -> None:
    answers = [False, True]
    monkeypatch.setattr(surroundings, "device_idle", lambda: answers.pop(0))
    desk.tracer.on_device = True
    desk.record(last)
    assert (desk.tracer.waits, len(answers)) == (True, 2)
    desk.capturer.let_go("the training ended")
    assert "stop" in desk.tracer.calls
    assert (desk.tracer.waits, len(answers)) == (False, 0)
    assert desk.statuses[-1] == status


@pytest.mark.parametrize(
    ("stream", "entries", "idle"),
    [
        (True, [], True),
        (False, [], False),
        (True, [{"state": "completed", "is_p2p": False}], True),
        (True, [{"state": "started", "is_p2p": False}], False),
        (True, [{"state": "scheduled", "is_p2p": True}], True),
        (True, None, True),
    ],
)
def test_a_device_is_at_rest_when_its_stream_and_nccls_record_say_so(
    monkeypatch: pytest.MonkeyPatch, stream: bool, entries: list[dict[str, object]] | None, idle: bool
) -> None:
    cuda = types.SimpleNamespace(current_stream=lambda: types.SimpleNamespace(query=lambda: stream))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    text = b"" if entries is None else json.dumps({"entries": entries}).encode()
    monkeypatch.setattr(surroundings, "nccl_flight_dump", lambda: text)
    assert surroundings.device_idle() == idle


def test_a_process_that_ends_in_another_thread_leaves_the_profiler_alone(desk: Desk) -> None:
    desk.record(11, last=13)
    other = threading.Thread(target=desk.capturer.let_go, args=("the training ended",))
    other.start()
    other.join()
    assert desk.tracer.calls == ["prepare", "start"]
    assert desk.statuses[-1] == "skipped"
    assert not any("CollectionLog" in repr(callback) for callback in gc.callbacks)


def test_an_order_that_comes_while_a_window_is_saved_waits_until_it_is(tmp_path: Path) -> None:
    """There is room for one answer only: a refusal would be overwritten by what became of the window."""
    guest, taken = Guest(), []
    writer = beat.BeatWriter.create(tmp_path, {})
    reader = beat.BeatReader.open(writer.path)
    reader.give(Order(2, beat.PROBE, 0, 50, 51, 0, 0, "x"))
    capturer = types.SimpleNamespace(phase=SAVING, busy=False, take=lambda order, *_: taken.append(order))
    guest._obey(capturer, writer, threading.get_ident())  # type: ignore[arg-type]
    assert taken == []
    capturer.phase = IDLE
    guest._obey(capturer, writer, threading.get_ident())  # type: ignore[arg-type]
    assert [order.window_id for order in taken] == [2]
    reader.close()
    writer.remove()
