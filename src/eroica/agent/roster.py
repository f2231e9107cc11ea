"""Keep the workers of this host, their pace and their end: beat files in, worker statuses out.

A pidfd becomes readable the moment a process is a zombie. Its status then stands in `/proc/PID/stat` until the parent
asks for it, and from Linux 6.15 on the pidfd itself tells it afterwards. Whether memory ran out is read from the
counter of kills in the process's cgroup.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import struct
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from eroica.agent.slowdown import Silence, Slowdown
from eroica.agent.witnesses import Subject
from eroica.hardware.cpu import GONE, read_stat
from eroica.hardware.host import parse_membership, parse_mounts, stat_files
from eroica.model.look import Ending
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire import beat
from eroica.wire.codec import plain
from eroica.wire.messages import OrderResult, WorkerState, WorkerStatus, WorkerTrigger

_INFO_REQUEST = 0xC000_0000 | 64 << 16 | 0xFF << 8 | 11  # PIDFD_GET_INFO with the first version's 64 bytes
_INFO_BYTES, _INFO_EXIT, _INFO_STATUS_AT = 64, 8, 60
_SIGKILL = 9
_KILLS_KEPT = 10


class ProcessFacts(NamedTuple):
    """Facts of `/proc/PID/stat`: the state's letter, clock ticks from boot to the start, and the exit status."""

    state: bytes
    start: int
    status: int


def process_facts(pid: int) -> ProcessFacts | None:
    """Read the kernel's facts of a process; None once it is gone."""
    fields = read_stat(pid)
    return ProcessFacts(fields[0], int(fields[19]), int(fields[49])) if len(fields) > 49 else None


def process_start(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None if it is gone or a zombie."""
    facts = process_facts(pid)
    return None if facts is None or facts.state in GONE else facts.start


def ending_of(status: int) -> Ending:
    """Translate a wait status into an ending."""
    if os.WIFSIGNALED(status):
        return Ending(kind="signal", number=os.WTERMSIG(status))
    return Ending(kind="exit", number=os.WEXITSTATUS(status))


def memory_files(pid: int) -> list[Path]:
    """Find the files in which the kernel counts processes killed for memory: of this one's cgroup, else of the host."""
    with contextlib.suppress(OSError):
        membership = parse_membership(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"), "memory")
        mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"), "memory")
        for name in ("memory.events", "memory.oom_control"):
            found = stat_files(mounts, membership, name)
            if found:
                return found[:1]
    return [Path("/proc/vmstat")]


def memory_kills(files: list[Path]) -> int:
    """Processes killed for want of memory so far; 0 where no counter exists."""
    total = 0
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
            total += sum(int(fields[1]) for fields in lines if len(fields) == 2 and fields[0] == "oom_kill")
    return total


class ProcessWatch:
    """One process, from the moment we know it to its end.

    Args:
        pid: Its id.
        started: Its start in clock ticks, as it said itself; 0 = whatever lives under that id now.

    Attributes:
        handle: A pidfd, readable once the process has ended; -1 where there is none.
    """

    def __init__(self, pid: int, started: int = 0) -> None:
        self.pid = pid
        self.handle = -1
        self._ending: Ending | None = None
        with contextlib.suppress(OSError, AttributeError):
            self.handle = os.pidfd_open(pid)
        facts = process_facts(pid)  # after the descriptor, so that both mean the same process
        self._started = started or (facts.start if facts is not None else -1)
        if facts is None or facts.start != self._started:
            self.close()
            self._ending = Ending()
        self._memory = memory_files(pid)
        self._kills = deque([memory_kills(self._memory)], maxlen=_KILLS_KEPT)

    @property
    def ending(self) -> Ending | None:
        """End of the process; None while it lives."""
        if self._ending is None and self._has_ended():
            self._ending = self._read()
            self.close()
        return self._ending

    def refresh(self) -> None:
        """Note the kills for memory so far. Only the last ones may be ours: a large process takes a while to die."""
        if self._ending is None:
            self._kills.append(memory_kills(self._memory))

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)

    def _has_ended(self) -> bool:
        if self.handle >= 0:
            poll = select.poll()
            poll.register(self.handle, select.POLLIN)
            return bool(poll.poll(0))
        return process_start(self.pid) != self._started

    def _read(self) -> Ending:
        ending = self._status()
        killed = ending.kind == "unknown" or (ending.kind == "signal" and ending.number == _SIGKILL)
        starved = killed and memory_kills(self._memory) > self._kills[0]
        return Ending(kind=ending.kind, number=ending.number, out_of_memory=starved)

    def _status(self) -> Ending:
        facts = process_facts(self.pid)
        if facts is not None and facts.start == self._started and facts.state in GONE:
            return ending_of(facts.status)
        status = _kept_status(self.handle)
        return Ending() if status is None else ending_of(status)


def _kept_status(handle: int) -> int | None:
    """The status of a process whose parent has taken it already, from Linux 6.15 on."""
    asked = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", asked, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(handle, _INFO_REQUEST, asked)
    except (OSError, ValueError):
        return None
    known, status = struct.unpack_from("=Q", asked, 0)[0], struct.unpack_from("=i", asked, _INFO_STATUS_AT)[0]
    return status if known & _INFO_EXIT else None


log = logging.getLogger("eroica.agent")
_MAX_PID = 1 << 22
_MAX_REFUSED = 20
_RECENT = 50
#: Seconds after which an order to count by another source is repeated; a worker takes it when an iteration ends.
_ORDER_AGAIN_S = 5.0
#: So many iterations tell how long one takes, roughly.
_A_FEW = 3
_STATES: tuple[WorkerState, ...] = ("learning", "steady", "capturing", "saving", "failed", "finished")
_KINDS = {beat.PROBE: "probe", beat.WINDOW: "window", beat.CANCEL: "cancel", beat.CLOSE: "close"}


def holds_device(pid: int) -> bool:
    """Return whether a process has opened an NVIDIA GPU, whose tracing leaves something behind."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if str(link.readlink()).removeprefix("/dev/nvidia").isdigit():
                    return True
    return False


class LocalWorker:
    """One worker of this host: its beat file, its trigger, its silence, whether it still lives.

    Args:
        reader: Its beat file.
        worker: Who it says it is.
        settings: Tunables.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        reader: beat.BeatReader,
        worker: Worker,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reader = reader
        self.worker = worker
        self.training_thread_id = _training_thread(reader.identity, worker)
        self.slowdown = Slowdown(settings)
        self.silence = Silence(settings)
        self.process = ProcessWatch(worker.pid, _whole(reader.identity, "process_start"))
        self.ended = False
        self.ended_at = 0.0
        self._clock = clock
        self._ending: Ending | None = None
        self._seen: beat.Beat | None = None
        self._trigger: WorkerTrigger | None = None
        self._state: WorkerState = "learning"
        self._untold: tuple[int, int] = (0, 0)
        self._learned_at = 0
        self._is_traced = False
        self._order_again_at = 0.0

    def meet_again(self) -> None:
        """Read the identity again where the worker has written it anew: it knows its device only when it trains."""
        with contextlib.suppress(OSError, ValueError, TypeError, OverflowError):  # torn, or gone: as it was
            if self.reader.look_again():
                self.worker = _worker(self.reader.identity, self.reader.path)
                self.training_thread_id = _training_thread(self.reader.identity, self.worker)

    def poll(self, judge: bool = True) -> None:
        """Take in the iterations since the last poll.

        Args:
            judge: Whether they say all of the job's speed: while a window is captured or summarized here, only those
                that are far longer do.
        """
        now = self.reader.beat()
        if now is None:
            return
        self._state = _STATES[now.state] if now.state < len(_STATES) else "failed"
        before = self._seen.iteration if self._seen is not None else now.iteration
        if self._seen is not None and now.relearned != self._seen.relearned:
            self.slowdown.restart()
            self._learned_at = now.iteration
            if now.source != self._seen.source:  # other iterations, with numbers of their own
                before = now.iteration
        self._listen(now)
        self._seen = now
        durations = self.reader.durations(before, now.iteration)
        known = [duration for duration in durations if duration > 0]  # of others the start is unknown
        count, total_ns = self._untold
        self._untold = count + len(known), total_ns + sum(known)
        first = now.iteration - len(durations) + 1
        for offset, duration_ns in enumerate(durations):
            duration_s = duration_ns * 1e-9
            if judge:
                trigger = self.slowdown.observe(first + offset, duration_s)
            else:
                trigger = self.slowdown.observe_beside_window(duration_s)
            if trigger is not None:
                count = self._trigger.count + 1 if self._trigger else 1
                self._trigger = WorkerTrigger(
                    count=count,
                    kind=trigger.kind,
                    reason=trigger.reason,
                    baseline_s=trigger.baseline_s,
                    current_s=trigger.current_s,
                    since=max(first + offset - trigger.lasted, 0) if trigger.lasted else 0,
                )

        if not self._is_traced and self.reader.result().status == beat.DONE:
            self._is_traced = True
            if holds_device(self.worker.pid):
                self.slowdown.traced()

    def _listen(self, now: beat.Beat) -> None:
        """Judge the silence; the first time, learn from the ring what pauses there were before us."""
        if self._seen is None:
            self.silence.survived(max(self.reader.durations(0, now.iteration), default=0) * 1e-9)
        self.silence.poll(
            self._clock(),
            (now.iteration, now.last_event_ns),
            self.iteration_s or self._first_mean_s(now.iteration),
            learning=self._state == "learning",
            over=self._state in ("failed", "finished"),
        )

    def _first_mean_s(self, iteration: int) -> float | None:
        """Return the mean of the few iterations before a median is known, seconds; None before the first."""
        known = [
            duration
            for duration in self.reader.durations(max(self._learned_at, iteration - _A_FEW), iteration)
            if duration > 0
        ]
        return sum(known) * 1e-9 / len(known) if known else None

    @property
    def iteration(self) -> int:
        """Iterations completed."""
        return self._seen.iteration if self._seen is not None else 0

    @property
    def iteration_s(self) -> float | None:
        """Mean of the recent iterations, seconds; the median before there are enough, None before there are a few."""
        known = self.slowdown.current_s
        if known is not None:
            return known
        after = max(self._learned_at, self.iteration - _RECENT)
        recent = [duration for duration in self.reader.durations(after, self.iteration) if duration > 0]
        return median(recent) * 1e-9 if len(recent) >= _A_FEW else None

    @property
    def triggers(self) -> int:
        """Times that it has asked for a window."""
        return self._trigger.count if self._trigger is not None else 0

    def look_alive(self, now: float) -> None:
        """Notice that the process ended, or that it signed off and may live on."""
        ending = self.process.ending
        if self.ended:
            self._complete(ending)
            return
        if ending is None and self.reader.path.exists():
            return
        self.poll()
        finished = self._state == "finished"
        if ending is None and not finished:
            return  # somebody else has removed its file
        self.ended, self.ended_at = True, now
        if finished:
            self._ending = Ending(kind="signed-off")
            self._complete(ending)
        else:
            self._state, self._ending = "gone", ending
        if ending is not None:
            remove_traces(self.reader.path)

    def _complete(self, ending: Ending | None) -> None:
        """The process of a worker that signed off has ended, too: now its exit status is known."""
        signed_off = self._ending is not None and self._ending.kind == "signed-off"
        if signed_off and ending is not None and ending.kind == "exit":
            self._ending = Ending(kind="signed-off", number=ending.number)

    def close(self) -> None:
        """Give everything back."""
        self.reader.close()
        self.process.close()

    @property
    def learns(self) -> bool:
        """The worker does not know yet what an iteration is."""
        return self._state == "learning"

    def subject(self) -> Subject:
        """The worker for a look."""
        return Subject(
            worker=self.worker,
            beat_file=self.reader.path,
            training_thread_id=self.training_thread_id,
            iteration=self.iteration,
            events=self.silence.heard,
            silent_s=self.silence.quiet_s,
            silent=self.silence.silent,
        )

    def count_by(self, source: int) -> None:
        """Order the worker to count its iterations by a source, if it could and does not; again only after a while."""
        seen, now = self._seen, self._clock()
        if seen is None or seen.source == source or not seen.known >> source & 1 or now < self._order_again_at:
            return
        self._order_again_at = now + _ORDER_AGAIN_S
        self.reader.give(beat.Order(0, beat.COUNT, source, 0, 0, 0, 0, ""))

    def result(self) -> OrderResult:
        """Result of the last order."""
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

    def report(self) -> WorkerStatus:
        """The worker for the collector; what it says of the latest iterations is not said again."""
        (count, total_ns), self._untold = self._untold, (0, 0)
        ending = self._ending
        if ending is not None:
            ending = msgspec.structs.replace(ending, ago_s=max(0.0, self._clock() - self.ended_at))
        return WorkerStatus(
            worker=self.worker,
            state=self._state,
            iteration=self.iteration,
            current_s=self.iteration_s,
            baseline_s=self.slowdown.baseline_s,
            steady=self.slowdown.steady,
            latest_s=total_ns * 1e-9 / count if count else None,
            trigger=self._trigger,
            result=self.result(),
            ended=self.ended,
            silent_s=0.0 if self.ended else self.silence.quiet_s,
            silent=self.silence.silent and not self.ended,
            silence="" if self.ended else self.silence.clause,
            ending=ending,
            source=self._seen.source if self._seen is not None else beat.NO_SOURCE,
            known=self._seen.known if self._seen is not None else 0,
        )


class Roster:
    """All workers of this host and job, found by their files in the runtime directory.

    Args:
        runtime: That directory.
        settings: Tunables.
        clock: Seconds, monotonic.
        arrived: Told of every new worker.
    """

    _ENDED_KEPT_S = 120.0

    def __init__(
        self,
        runtime: Path,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        arrived: Callable[[LocalWorker], None] = lambda worker: None,
    ) -> None:
        self.workers: dict[int, LocalWorker] = {}
        self.notes: list[str] = []
        self._arrived = arrived
        self._scanned = False
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
        self._scanned = True
        for worker in self.workers.values():
            worker.look_alive(now)
            if not worker.ended:
                worker.meet_again()
            worker.process.refresh()
        for pid in [pid for pid, w in self.workers.items() if w.ended and now - w.ended_at > self._ENDED_KEPT_S]:
            self.workers.pop(pid).close()

    def poll(self, judge: bool = True) -> None:
        """Take in all workers' new iterations; see `LocalWorker.poll`."""
        for worker in self.living:
            worker.poll(judge)

    def count_by(self, source: int) -> None:
        """Order the workers that could, and do not, to count their iterations by a source."""
        for worker in self.living:
            worker.count_by(source)

    def absolve(self) -> None:
        """Raise all workers' margins: a window found nothing wrong."""
        for worker in self.workers.values():
            worker.slowdown.absolve()

    def _known(self, path: Path) -> bool:
        return any(worker.reader.path == path and not worker.ended for worker in self.workers.values())

    def _add(self, path: Path) -> None:
        try:
            reader = beat.BeatReader.open(path)
            worker = _worker(reader.identity, path)
        except (OSError, ValueError, TypeError, OverflowError) as error:  # msgspec's ValidationError is a ValueError
            self._refused.add(path.name)
            if len(self._refused) <= _MAX_REFUSED:
                self.notes.append(plain(f"{path.name} is no worker of ours: {error}"))
                log.warning("%s refused: %s", path, error)
            return
        local = LocalWorker(reader, worker, self._settings, self._clock)
        if not self._scanned and local.process.ending is not None:
            log.info("%s was left behind by a process that ended before we came", path)
            local.close()
            remove_traces(path)
            return
        former = self.workers.get(worker.pid)
        if former is not None:
            former.close()
        self.workers[worker.pid] = local
        self._arrived(local)
        log.info("worker %d is here (pid %d)", worker.global_rank, worker.pid)


def remove_traces(beat_file: Path) -> None:
    """Remove what an ended worker left in the runtime directory."""
    for suffix in (".beat", ".ask", ".answer"):
        with contextlib.suppress(OSError):
            beat_file.with_suffix(suffix).unlink()


def _whole(identity: dict[str, Any], name: str) -> int:
    """A number of the identity page; 0 for whatever else stands there."""
    value = identity.get(name)
    return value if type(value) is int and 0 <= value < 1 << 64 else 0


def _training_thread(identity: dict[str, Any], worker: Worker) -> int:
    """Kernel thread id of the thread that trains; the main one where the page does not say."""
    return _whole(identity, "training_thread_id") or worker.pid


def _worker(identity: dict[str, Any], path: Path) -> Worker:
    """Read the worker that a beat file names.

    Raises:
        ValueError: It lacks something, is another process's, or has text that no message can carry.
        OverflowError: It has a number that no message can carry.
    """
    worker = msgspec.convert({name: identity[name] for name in Worker.__struct_fields__ if name in identity}, Worker)
    if path.name != f"{worker.pid}.beat" or not 0 < worker.pid <= _MAX_PID:
        raise ValueError(f"it names process {worker.pid}")
    msgspec.msgpack.encode(worker)
    return worker
