"""Capture what one order asks for: profiler, stacks, collections, boundaries, and the files they end in.

Stacks are sampled from inside only where no process may look in from outside.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from eroica.errors import CaptureError
from eroica.wire import beat
from eroica.wire.beat import Order
from eroica.wire.places import PROBE_FILE, write_private
from eroica.worker import setup, surroundings
from eroica.worker.errors_of_users import UNFAMILIAR, raised_by_user
from eroica.worker.pristine import (
    Flag,
    Thread,
    get_ident,
    get_native_id,
    monotonic,
    monotonic_ns,
    python_threads,
    time_ns,
)
from eroica.worker.setup import Workload
from eroica.worker.tracer import Tracer, survey

Stack = tuple[CodeType, ...]


def _stack(frame: FrameType | None) -> Stack:
    """Code of all frames, outermost first."""
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    codes.reverse()
    return tuple(codes)


class StackSampler:
    """A thread that notes every thread's stack at a fixed rate, and only what has changed since the last time.

    Args:
        rate_hz: Samples per second.
        run: Runs our code behind the guest's border.

    Attributes:
        failure: Why sampling ended before it was told to; empty if it did not.
    """

    def __init__(self, rate_hz: int, run: Callable[..., Any]) -> None:
        self._period_s = 1.0 / rate_hz
        self._rate_hz = rate_hz
        self._stop = Flag()
        self._start_ns = 0
        self._last: dict[int, Stack] = {}
        self._changes: list[tuple[int, int, Stack]] = []  # time, thread ident, stack from then on
        self._names: dict[int, str] = {}
        self._end_ns: int | None = None  # since the start; until sampling failed there is none
        self.failure = ""
        self._thread = Thread(functools.partial(run, self._sample_until_stopped))

    def start(self) -> None:
        """Sample until `stop`."""
        self._start_ns = monotonic_ns()
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples; does not wait."""
        self._stop.set()

    def save(self, directory: Path) -> Path:
        """Write `stacks.json` and `stacks.meta.json` in py-spy's chrometrace form.

        Raises:
            OSError: The directory cannot be written.
        """
        self._thread.join(1.0)
        path = directory / "stacks.json"
        write_private(path, json.dumps(list(self._events())).encode())
        meta = {"start_monotonic_ns": self._start_ns, "rate_hz": self._rate_hz, "source": "thread"}
        write_private(directory / "stacks.meta.json", json.dumps(meta).encode())
        return path

    def _sample_until_stopped(self) -> None:
        due = monotonic()
        try:
            while not self._stop.wait(max(0.0, due - monotonic())):
                self._sample()
                due = max(due + self._period_s, monotonic() - 10 * self._period_s)
        except Exception as error:  # noqa: BLE001 - costs this window its stacks, not the worker its watching
            self._end_ns = monotonic_ns() - self._start_ns
            self.failure = f"{type(error).__name__}: {error}"

    def _sample(self) -> None:
        now = monotonic_ns() - self._start_ns
        frames = sys._current_frames()
        frames.pop(get_ident(), None)
        for ident, frame in frames.items():
            stack = _stack(frame)
            if self._last.get(ident) != stack:
                self._note(now, ident, stack)
        for ident in self._last.keys() - frames.keys():
            self._note(now, ident, ())
        frames.clear()

    def _note(self, now: int, ident: int, stack: Stack) -> None:
        self._changes.append((now, ident, stack))
        if not stack:
            self._last.pop(ident, None)
            return
        self._last[ident] = stack
        if ident not in self._names:
            named = (thread for thread in python_threads() if thread.ident == ident)
            self._names[ident] = next((f"thread ({t.native_id}): {t.name}" for t in named), f"thread ({ident})")

    # ------------------------------------------------------------------ what py-spy would have written

    def _events(self) -> Iterator[dict[str, Any]]:
        end = self._end_ns if self._end_ns is not None else monotonic_ns() - self._start_ns
        before: dict[int, Stack] = {}
        closing = [(end, ident, ()) for ident in self._last]
        for moment, ident, stack in [*self._changes, *closing]:
            old = before.get(ident, ())
            shared = next((i for i, (a, b) in enumerate(zip(old, stack, strict=False)) if a is not b), None)
            kept = min(len(old), len(stack)) if shared is None else shared
            for code in reversed(old[kept:]):
                yield self._event("E", moment, ident, *_names_of(code))
            if bool(old) != bool(stack):
                yield self._event("B" if stack else "E", moment, ident, self._names.get(ident, f"thread ({ident})"))
            for code in stack[kept:]:
                yield self._event("B", moment, ident, *_names_of(code))
            before[ident] = stack

    @staticmethod
    def _event(phase: str, moment_ns: int, ident: int, name: str, file: str = "", line: int = 0) -> dict[str, Any]:
        return {
            "args": {"filename": file, "line": line},
            "cat": "eroica",
            "name": name,
            "ph": phase,
            "pid": os.getpid(),
            "tid": ident,
            "ts": moment_ns // 1000,
        }


def _names_of(code: CodeType) -> tuple[str, str, int]:
    return getattr(code, "co_qualname", code.co_name), code.co_filename, code.co_firstlineno


Answer = TypeVar("Answer")

_WORKER_FACTS = ("global_rank", "local_rank", "world_size", "host", "pid", "device", "device_uuid")


def _clock_pair() -> dict[str, int]:
    """Wall clock and CLOCK_MONOTONIC at one moment."""
    before = monotonic_ns()
    realtime = time_ns()
    return {"realtime_ns": realtime, "monotonic_ns": (before + monotonic_ns()) // 2}


#: Reads `tick`, which is None, and a text of that; of all else `format` makes one itself, and looks for signals then.
_TICK = "{clock.tick.__class__.__name__}"


class _Clock(map):  # type: ignore[type-arg]
    tick = property(next)


class CollectionLog:
    """Runs of the cyclic garbage collector while it is on.

    The interpreter can raise nothing out of the collector's callbacks: an error that a signal's handler raises while
    Python runs in one, a time limit say, is printed and lost. So no Python runs in ours: they are made of parts in C.
    One callback keeps the collector's phase and facts. The other formats a text; for that it reads the clock's `tick`,
    which takes the next item of a `map`, which appends the time, the thread and the kept facts to a list.
    """

    def __init__(self) -> None:
        self._noted: list[tuple[int, int, tuple[str, dict[str, int]]]] = []
        now: dict[str, dict[str, int]] = {}  # what the collector has just said: phase and facts
        noting = zip(iter(monotonic_ns, None), iter(get_native_id, None), iter(now.popitem, None), strict=False)
        clock = _Clock(self._noted.append, noting)
        self._callbacks = (now.__setitem__, functools.partial(_TICK.format, clock=clock))

    def on(self) -> None:
        """Start listening."""
        gc.callbacks.extend(self._callbacks)

    def off(self) -> None:
        """Stop listening. Idempotent."""
        for callback in self._callbacks:
            if callback in gc.callbacks:
                gc.callbacks.remove(callback)

    @property
    def runs(self) -> list[dict[str, int]]:
        """Runs that began and ended while it was on, as `eroica.model.window.GarbageCollection`."""
        began: dict[int, int] = {}
        found = []
        for moment_ns, thread, (phase, facts) in self._noted:
            if phase == "start":
                began[thread] = moment_ns
            elif thread in began:
                times = {"start_ns": began.pop(thread), "end_ns": moment_ns}
                found.append({**times, "generation": facts["generation"], "thread_id": thread})
        return found


class Session:
    """One accepted order on its way: what was captured so far. Belongs to the training thread until it is saved.

    Args:
        order: What to capture.
        tracer: The profiler to do it with.
        run: Runs our code behind the guest's border.

    Attributes:
        has_sends: The saved trace holds sends or receives.
    """

    def __init__(self, order: Order, tracer: Tracer, run: Callable[..., Any]) -> None:
        self.order = order
        self.tracer = tracer
        self.prepared = self.recording = False
        self.boundaries_ns: list[int] = []
        self.stall_ns = 0
        self.notes: list[str] = []
        self.loader_pids: set[int] = set()
        self.loader_setup: dict[str, str] = {}
        self.has_sends = False
        self.collections = CollectionLog()
        self._workload = Workload()
        self._clocks: list[dict[str, int]] = []
        self._groups: list[dict[str, Any]] = []
        self._enqueued: dict[str, int] = {}
        self._sampler = StackSampler(order.sampling_hz, run) if order.sampling_hz > 0 else None

    @property
    def iterations(self) -> int:
        """Whole iterations captured."""
        return max(0, len(self.boundaries_ns) - 1)

    def prepare(self) -> None:
        """Get the profiler ready, one iteration early if possible."""
        before = monotonic_ns()
        self.prepared = True  # before it is: a signal's handler may raise inside
        self.tracer.prepare()
        self._groups = self._ask("process groups", surroundings.process_groups) or []
        self.stall_ns += monotonic_ns() - before

    def count_gradients(self, optimizers: Iterable[Any]) -> None:
        """Count the parameters that have a gradient."""
        before = monotonic_ns()
        self._ask("count of gradients", lambda: self._workload.count_gradients(optimizers))
        self.stall_ns += monotonic_ns() - before

    def add_batch(self, iterator: Any) -> None:
        """A loader hands out a batch while the window is open."""
        self._ask("sizes of batches", lambda: self._workload.add_batch(iterator))

    def open(self) -> None:
        """Record from here on."""
        before = monotonic_ns()
        self._clocks.append(_clock_pair())
        if self._sampler is not None:
            self._sampler.start()
        self.recording = True
        self.tracer.start()
        self.collections.on()
        now = monotonic_ns()
        self.boundaries_ns.append(now)
        self.stall_ns += now - before

    def park(self) -> None:
        """Record no further, but leave the profiler standing: a collective may still be open."""
        before = monotonic_ns()
        self.tracer.pause()
        self.recording = False
        self.quiet()
        self._enqueued = self._ask("open collectives", surroundings.collectives_enqueued) or {}
        self._clocks.append(_clock_pair())
        self.stall_ns += monotonic_ns() - before

    def settled(self) -> bool:
        """Return whether every collective enqueued when the window was parked has completed, or that cannot be told."""
        before = monotonic_ns()
        completed = self._ask(
            "open collectives",
            lambda: surroundings.collectives_completed(self._enqueued, self._clocks[-1]["realtime_ns"]),
        )
        if completed is None:
            self._enqueued = {}
        self.stall_ns += monotonic_ns() - before
        return completed is not False

    def idle(self) -> bool:
        """Stopping the profiler would not have to wait for the device, as far as it can be asked without waiting."""
        return not self.tracer.on_device or self._ask("state of the device", surroundings.device_idle) is True

    def abandon(self) -> None:
        """Record no further, and leave the profiler standing for good. Asks nobody anything, so it cannot fail."""
        self.quiet()
        if self._clocks:  # it was opened
            self.tracer.pause()

    def close(self) -> None:
        """Take the profiler down. Idempotent."""
        before = monotonic_ns()
        self.quiet()
        if self.prepared:
            try:
                self.tracer.stop()
            except CaptureError:
                self.prepared = False
                raise
            self.prepared = False
        self.stall_ns += monotonic_ns() - before

    def quiet(self) -> None:
        """Note no more collections and stacks. Idempotent."""
        self.collections.off()
        if self._sampler is not None:
            self._sampler.stop()

    def save(self, worker: dict[str, Any], threads: dict[str, Any]) -> int:
        """Write everything into the order's directory; `capture.json` last, and only for a window.

        Of a probe, only one whose inputs were recorded stays.

        Returns:
            Events in the trace, an estimate.

        Raises:
            OSError: The directory is gone or full.
        """
        directory = Path(self.order.directory)
        trace = directory / "trace.json"
        self.stall_ns += self.tracer.save(trace)
        self.stall_ns += self.tracer.drop()
        events, self.has_sends = survey(trace)
        if self.order.kind == beat.PROBE:
            if self.tracer.records_inputs:
                trace.rename(directory / PROBE_FILE)
            else:
                trace.unlink(missing_ok=True)
            return events
        first = self.order.first_iteration
        record = {
            "worker": {name: worker[name] for name in _WORKER_FACTS},
            "window_id": self.order.window_id,
            "first_iteration": first,
            "last_iteration": first + self.iterations,
            "boundaries_ns": self.boundaries_ns,
            "clocks": self._clocks,
            "garbage_collections": self.collections.runs,
            "loader_pids": sorted(self.loader_pids),
            "workload": self._workload.counts(self.iterations),
            "notes": self.notes,
            **threads,
            "thread_names": self._ask("thread names", surroundings.thread_names) or {},
            "process_groups": self._ask("process groups", surroundings.process_groups)
            or self._groups,  # of one that ended
            "setup": {**(self._ask("setup", setup.torch_setup) or {}), **self.loader_setup},
            "flight_path": self._save_flight(directory),
            "stacks_path": self._save_stacks(directory),
            "trace_path": str(trace),
            "events": events,
            "stall_s": self.stall_ns * 1e-9,
        }
        draft = directory / ".capture.draft"
        write_private(draft, json.dumps(record).encode())
        draft.rename(directory / "capture.json")
        return events

    def _ask(self, what: str, question: Callable[[], Answer]) -> Answer | None:
        """Ask torch a question; None and a note where this version cannot be asked like that."""
        try:
            return question()
        except UNFAMILIAR as error:
            if raised_by_user(error):
                raise
            note = f"no {what}: {type(error).__name__}: {error}"
            if note not in self.notes:
                self.notes.append(note)
            return None

    def _save_stacks(self, directory: Path) -> str:
        if self._sampler is None:
            return ""
        path = self._sampler.save(directory)
        if self._sampler.failure:
            self.notes.append(f"the sampling of stacks ended early: {self._sampler.failure}")
        return str(path)

    def _save_flight(self, directory: Path) -> str:
        dump = self._ask("flight recorder", surroundings.flight_dump)
        if not dump:
            return ""
        path = directory / "flight.json"
        write_private(path, dump)
        return str(path)
