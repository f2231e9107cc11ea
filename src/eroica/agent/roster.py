"""Who trains on this host, and how fast: beat files in, worker statuses out."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from eroica.agent.slowdown import Slowdown
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire import beat
from eroica.wire.messages import OrderResult, WorkerState, WorkerStatus, WorkerTrigger

log = logging.getLogger("eroica.agent")
_STATES: tuple[WorkerState, ...] = ("learning", "steady", "capturing", "saving", "failed", "finished")
_KINDS = {beat.PROBE: "probe", beat.WINDOW: "window", beat.CANCEL: "cancel"}


def process_start(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


class LocalWorker:
    """One worker of this host: its beat file, its trigger, whether it still lives."""

    def __init__(self, reader: beat.BeatReader, worker: Worker, training_thread_id: int, settings: Settings) -> None:
        self.reader = reader
        self.worker = worker
        self.training_thread_id = training_thread_id
        self.slowdown = Slowdown(settings)
        self.ended = False
        self.ended_at = 0.0
        self._started = process_start(worker.pid)
        self._seen: beat.Beat | None = None
        self._trigger: WorkerTrigger | None = None
        self._state: WorkerState = "learning"

    def poll(self, judge: bool = True) -> None:
        """Take in the iterations since the last poll.

        Args:
            judge: Whether they say anything about the job's speed: not while a window is captured or summarized here.
        """
        now = self.reader.beat()
        if now is None:
            return
        self._state = _STATES[now.state] if now.state < len(_STATES) else "failed"
        before = self._seen.iteration if self._seen is not None else now.iteration
        if self._seen is not None and now.relearned != self._seen.relearned:
            self.slowdown.restart()
        self._seen = now
        if not judge:
            return
        durations = self.reader.durations(before, now.iteration)
        first = now.iteration - len(durations) + 1
        for offset, duration_ns in enumerate(durations):
            trigger = self.slowdown.observe(first + offset, duration_ns * 1e-9)
            if trigger is not None:
                count = self._trigger.count + 1 if self._trigger else 1
                self._trigger = WorkerTrigger(
                    count=count,
                    kind=trigger.kind,
                    reason=trigger.reason,
                    baseline_s=trigger.baseline_s,
                    current_s=trigger.current_s,
                )

    def look_alive(self, now: float) -> None:
        """Notice that the process ended."""
        if self.ended:
            return
        signed_off = not self.reader.path.exists()
        if signed_off or self._started is None or process_start(self.worker.pid) != self._started:
            self.poll()
            self.ended, self.ended_at = True, now
            if not signed_off and self._state != "finished":
                self._state = "gone"
            with contextlib.suppress(OSError):
                self.reader.path.unlink()

    def result(self) -> OrderResult:
        """What became of the last order."""
        answer = self.reader.result()
        return OrderResult(
            window_id=answer.window_id,
            status=beat.RESULT_NAMES[min(answer.status, beat.ORDER_FAILED)],  # type: ignore[arg-type]
            kind=_KINDS.get(answer.kind, "window"),  # type: ignore[arg-type]
            first_iteration=answer.first_iteration,
            last_iteration=answer.last_iteration,
            events=answer.events,
            stall_s=answer.stall_ns * 1e-9,
            duration_s=answer.duration_ns * 1e-9,
            note=answer.note,
        )

    def status(self) -> WorkerStatus:
        """The worker for the collector."""
        return WorkerStatus(
            worker=self.worker,
            state=self._state,
            iteration=self._seen.iteration if self._seen is not None else 0,
            current_s=self.slowdown.current_s,
            baseline_s=self.slowdown.baseline_s,
            steady=self.slowdown.steady,
            trigger=self._trigger,
            result=self.result(),
            ended=self.ended,
        )


class Roster:
    """All workers of this host and job, found by their files in the runtime directory."""

    _ENDED_KEPT_S = 120.0

    def __init__(self, runtime: Path, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers: dict[int, LocalWorker] = {}
        self.notes: list[str] = []
        self._runtime = runtime
        self._settings = settings
        self._clock = clock
        self._refused: set[str] = set()

    @property
    def living(self) -> list[LocalWorker]:
        """Workers whose process is there."""
        return [worker for worker in self.workers.values() if not worker.ended]

    def scan(self) -> None:
        """Pick up new workers, notice ended ones, forget old ones."""
        now = self._clock()
        for path in sorted(self._runtime.glob("*.beat")):
            if path.name not in self._refused and not self._known(path):
                self._add(path)
        for worker in self.workers.values():
            worker.look_alive(now)
        for pid in [pid for pid, w in self.workers.items() if w.ended and now - w.ended_at > self._ENDED_KEPT_S]:
            self.workers.pop(pid).reader.close()

    def poll(self, judge: bool = True) -> None:
        """Take in everybody's new iterations; see `LocalWorker.poll`."""
        for worker in self.living:
            worker.poll(judge)

    def absolve(self) -> None:
        """A window found nothing wrong: everybody's margin grows."""
        for worker in self.workers.values():
            worker.slowdown.absolve()

    def _known(self, path: Path) -> bool:
        return any(worker.reader.path == path and not worker.ended for worker in self.workers.values())

    def _add(self, path: Path) -> None:
        try:
            reader = beat.BeatReader.open(path)
            worker = msgspec.convert(_facts(reader.identity), Worker)
            thread = int(reader.identity.get("training_thread_id") or worker.pid)
        except (OSError, ValueError, TypeError) as error:  # msgspec's ValidationError is a ValueError
            self._refused.add(path.name)
            self.notes.append(f"{path.name} is no worker of ours: {error}")
            log.warning("%s refused: %s", path, error)
            return
        self.workers[worker.pid] = LocalWorker(reader, worker, thread, self._settings)
        log.info("worker %d is here (pid %d)", worker.global_rank, worker.pid)


def _facts(identity: dict[str, Any]) -> dict[str, Any]:
    return {name: identity[name] for name in Worker.__struct_fields__ if name in identity}
