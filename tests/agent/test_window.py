"""One window on a host: how long it is waited for, and what is said when a sampler fails."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
import types
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from eroica.agent import window
from eroica.agent.roster import LocalWorker
from eroica.agent.scratch import Scratch
from eroica.agent.window import HostWindow, find_rise, split_at_rise
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire import beat
from eroica.wire.messages import OrderMessage
from eroica.wire.places import PROBE_FILE, SAVING_PREFIX
from eroica.worker import session
from eroica.worker.capture import SAVING, STATES, Capturer

FACTS = {
    "global_rank": 0, "local_rank": 0, "world_size": 1, "host": "h", "pid": os.getpid(), "device": "cpu",
    "device_uuid": "", "training_thread_id": os.getpid(), "torch": "2.13.0",
}  # fmt: skip


class FastLoop(asyncio.SelectorEventLoop):
    """Time passes at once when nobody has anything to do."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


class Profiler:
    """Records nothing."""

    on_device, waits = False, True

    def __call__(self, inputs: bool, operators: bool) -> Profiler:
        return self

    def prepare(self) -> None: ...

    start = pause = stop = prepare

    def save(self, path: Path) -> int:
        path.write_text(json.dumps([{"ph": "X"}] * 10))
        return 0

    def drop(self) -> int:
        return 0


class Training:
    """A worker with the real guest's capture, whose iterations all take as long."""

    def __init__(self, directory: Path, loop: FastLoop, iteration_s: float) -> None:
        self.iteration_s = iteration_s
        self.writer = beat.BeatWriter.create(directory, FACTS)
        worker = Worker(global_rank=0, pid=os.getpid(), world_size=1, host="h")
        self.local = LocalWorker(beat.BeatReader.open(self.writer.path), worker, Settings(), loop.time)
        door = types.SimpleNamespace(exists=True, taken=False, used=True, ours=0)
        self._capturer = Capturer(
            FACTS, self.writer.answer, door, lambda work: work(), lambda act, *more: act(*more), Settings(),
            make_tracer=Profiler(),
        )  # type: ignore[arg-type]  # fmt: skip
        self._loop = loop

    async def train(self, first: int, last: int) -> None:
        for iteration in range(first, last + 1):
            await asyncio.sleep(self.iteration_s)
            end_ns = round(self._loop.now * 1e9)
            self.writer.beat(iteration, end_ns, round(self.iteration_s * 1e9), STATES[self._capturer.phase], 0)
            self.local.poll()
            order = self.writer.new_order() if self._capturer.phase != SAVING else None
            if order is not None:
                self._capturer.take(order, iteration)
            self._capturer.boundary(iteration, end_ns)

    def close(self) -> None:
        self.local.close()
        self.writer.remove()


class Sampler:
    """py-spy that only says how long it was asked to last."""

    asked_s = 0.0

    def __init__(self, pid: int, directory: Path, hz: int, longest_s: int, most_children: int) -> None:
        Sampler.asked_s = longest_s

    def start(self) -> None: ...

    interrupt = start

    def stop(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize("iteration_s", [0.5, 45.0, 100.0, 600.0])
def test_a_window_is_waited_for_as_long_as_its_iterations_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iteration_s: float
) -> None:
    loop = FastLoop()
    monkeypatch.setattr(session, "monotonic_ns", lambda: round(loop.now * 1e9))
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    monkeypatch.setattr(window, "StackSampler", Sampler)
    monkeypatch.setattr(HostWindow, "_start_hardware", lambda self: None)
    settings = Settings(sampler="outside")
    training, scratch = Training(tmp_path, loop, iteration_s), Scratch(tmp_path / "scratch", settings)
    captured: list[dict[str, Any]] = []
    delivered: list[tuple[int, bytes]] = []
    regrets: list[str] = []
    stopped: list[str] = []

    async def deliver(rank: int, pattern: bytes) -> None:
        delivered.append((rank, pattern))

    async def regret(window_id: int, rank: int, why: str) -> None:
        regrets.append(why)

    async def summarize(self: HostWindow, directory: Path) -> str:
        captured.append(json.loads((directory / "capture.json").read_bytes()))
        (directory / "pattern").write_bytes(b"p")
        return ""

    def stop(self: HostWindow, really: Callable[[HostWindow], None] = HostWindow._stop_samplers) -> None:
        stopped.append(training.local.result().status)
        really(self)

    monkeypatch.setattr(HostWindow, "_run_summary", summarize)
    monkeypatch.setattr(HostWindow, "_stop_samplers", stop)

    async def live() -> None:
        await training.train(1, 15)
        order = OrderMessage(
            serial=1, window_id=7, kind="window", purpose="slow", first_iteration=18, last_iteration=20
        )
        one = HostWindow(order, [training.local], scratch, settings, (True, ""), deliver, regret)
        one.start()
        going_on = asyncio.create_task(training.train(16, 40))
        await one.follow()
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)

    try:
        loop.run_until_complete(live())
    finally:
        loop.close()
        training.close()
    assert (delivered, regrets) == ([(0, b"p")], [])
    assert (captured[0]["first_iteration"], captured[0]["last_iteration"]) == (18, 20)
    assert stopped[0] in ("closed", "done")  # nothing was cut off before
    assert Sampler.asked_s >= 5 * iteration_s
    assert not scratch.window(7).exists()


def one_window(tmp_path: Path, **settings: Any) -> HostWindow:
    order = OrderMessage(serial=1, window_id=7, kind="window", purpose="slow", first_iteration=1, last_iteration=2)
    chosen = Settings(**settings)
    return HostWindow(order, [], Scratch(tmp_path, chosen), chosen, (False, "no ptrace"), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "note"),
    [("print('x'); raise SystemExit('no room left')", "no room left"), ("raise SystemExit(3)", "exit status 3"),
     ("import os; os.kill(os.getpid(), 9)", "ended by signal 9"), ("", "")],
)  # fmt: skip
def test_a_hardware_sampler_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, note: str
) -> None:
    monkeypatch.setattr(window, "isolated", lambda *_, **__: [sys.executable, "-c", code])
    one = one_window(tmp_path)
    one._start_hardware()
    assert one._hardware is not None
    one._hardware.wait()
    one._stop_samplers()
    assert one.notes == ([f"hardware channels are missing or end early: {note}"] if note else [])


def test_where_ptrace_is_forbidden_the_note_says_that_loader_processes_are_not_seen(tmp_path: Path) -> None:
    one = one_window(tmp_path)
    one._workers = [object()]  # type: ignore[list-item]
    assert one._inside_hz() == 100
    assert one.notes == [
        "Python stacks come from a thread inside each worker, and none from data-loader processes: no ptrace"
    ]


def test_what_an_earlier_probe_left_goes_with_the_next_probe_and_not_with_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostWindow, "_start_hardware", lambda self: None)
    loop = FastLoop()
    training = Training(tmp_path, loop, 1.0)
    settings = Settings(sampler="none")
    scratch = Scratch(tmp_path / "scratch", settings)
    left = scratch.window(7) / str(os.getpid()) / PROBE_FILE

    def start(kind: Any) -> None:
        order = OrderMessage(serial=1, window_id=7, kind=kind, purpose="slow", first_iteration=1, last_iteration=2)
        scratch.sweep({order.window_id})
        HostWindow(order, [training.local], scratch, settings, (True, ""), None, None).start()  # type: ignore[arg-type]

    try:
        start("probe")
        left.write_text("{}")
        start("window")
        assert left.exists()
        start("probe")
        assert not left.exists()
    finally:
        loop.close()
        training.close()


def levels_in(rng: random.Random, levels: list[tuple[float, int]], noise: float = 0.05) -> list[float]:
    return [level * rng.lognormvariate(0.0, noise) for level, count in levels for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("before", "times", "after"), [(10, 1.5, 5), (40, 1.4, 40), (30, 18.0, 4), (12, 2.0, 60)])
def test_a_rise_is_found_where_it_began(before: int, times: float, after: int, seed: int) -> None:
    assert find_rise(levels_in(random.Random(seed), [(1.0, before), (times, after)])) == before


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "levels",
    [
        [(1.0, 60)],
        [(1.0, 30), (1.15, 30)],
        [(1.0, 20), (3.0, 3)],
        [(1.0, 20), (2.0, 10), (1.0, 20)],
        [(2.0, 3), (1.0, 40)],
        [(1.0, 5), (2.0, 40)],
    ],
    ids=["steady", "a little", "too short", "comes back", "slow at first", "no past"],
)
def test_what_is_no_lasting_rise_is_not_cut(levels: list[tuple[float, int]], seed: int) -> None:
    assert find_rise(levels_in(random.Random(seed), levels, 0.1)) is None


def test_all_workers_of_a_host_end_at_the_same_iteration(tmp_path: Path) -> None:
    paths = []
    for rank, before in enumerate([20, 21, 20]):
        durations = levels_in(random.Random(rank), [(5e7, before), (9e7, 41 - before)])
        path = tmp_path / f"{rank}.json"
        bounds = [round(end) for end in accumulate(durations, initial=1e9)]
        path.write_text(
            json.dumps({"boundaries_ns": bounds, "first_iteration": 90, "last_iteration": 131, "notes": ["kept"]})
        )
        paths.append(path)
    note = split_at_rise(paths)
    assert "iteration 19" in note
    for path in paths:
        record = json.loads(path.read_text())
        assert (len(record["boundaries_ns"]), record["last_iteration"]) == (20, 109)
        assert record["notes"] == ["kept", note]
    assert split_at_rise(paths) == ""


def scratch_of(tmp_path: Path, job: str = "job", **settings: object) -> Scratch:
    scratch = Scratch(tmp_path / f"eroica-{os.getuid()}" / f"{job}@h", Settings(**settings))  # type: ignore[arg-type]
    scratch.prepare()
    return scratch


def fill(scratch: Scratch, window_id: int, size: int = 100) -> Path:
    directory = scratch.window(window_id) / "4"
    directory.mkdir(parents=True)
    (directory / "trace.json").write_bytes(bytes(size))
    return scratch.window(window_id)


def test_the_scratch_cap_is_shared_by_the_workers_of_a_host(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, Settings(scratch_bytes=1_000_000))
    alone = scratch.event_budget(1)
    assert 1000 < alone < 10_000
    assert scratch.event_budget(4) == alone // 4
    assert scratch.event_budget(0) == alone


def test_windows_go_and_with_them_those_that_nobody_follows_and_at_last_everything(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path)
    former, followed, over = fill(scratch, 1), fill(scratch, 2), fill(scratch, 3)
    assert scratch.release(3) == "" and not over.exists()
    scratch.sweep({2})
    assert followed.exists() and not former.exists()
    scratch.remove()
    assert list(followed.parent.parent.iterdir()) == []


def test_what_a_killed_worker_was_saving_goes_and_what_a_living_one_saves_stays(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path, keep_traces=True)
    root = fill(scratch, 1).parent
    living, dead = root / f"{SAVING_PREFIX}{os.getpid()}", root / f"{SAVING_PREFIX}999999999"
    for place in (living, dead):
        place.mkdir()
        (place / "trace.json.tmp").touch()
    scratch.sweep({1})
    assert living.exists() and not dead.exists()


def test_kept_windows_count_against_half_of_the_cap_and_the_rest_is_not_kept(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path, keep_traces=True, scratch_bytes=1_000_000)
    before = scratch.event_budget(1)
    first, second = fill(scratch, 1, 400_000), fill(scratch, 2, 200_000)
    assert scratch.release(1) == ""
    assert scratch.event_budget(1) == pytest.approx(0.6 * before, rel=0.01)
    assert "window 2 were not kept" in scratch.release(2)
    scratch.sweep(set())
    scratch.remove()
    assert first.exists() and not second.exists()
    again = scratch_of(tmp_path, keep_traces=True, scratch_bytes=1_000_000)  # an agent that was started again
    assert again.event_budget(1) == pytest.approx(0.6 * before, rel=0.01)


def test_what_killed_agents_left_goes_after_a_day_but_nothing_that_was_kept_or_is_in_use(tmp_path: Path) -> None:
    old, kept, used = (scratch_of(tmp_path, name, keep_traces=name == "kept") for name in ("old", "kept", "used"))
    stranger = tmp_path / "somebody" / "x@h"
    stranger.mkdir(parents=True)
    long_ago = time.time() - 100_000
    for scratch in (old, kept, used):
        window = fill(scratch, 1)
        for place in (window, window.parent, *window.parent.iterdir()):
            os.utime(place, (long_ago, long_ago))
    fill(used, 2)
    os.utime(stranger, (long_ago, long_ago))
    scratch_of(tmp_path, "new")
    assert not old.window(1).parent.exists()
    assert kept.window(1).exists() and used.window(1).exists() and stranger.exists()
