"""Read the communication of a host's workers all the time, and report one record a second.

The sockets are read 20 times a second, and less often where that would take more than `_CORE_SHARE` of a core.
The workers are asked for counters about `communication_hz` times a second each, not while looks are taken
(`counting`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from eroica.agent.counting import Counting
from eroica.agent.flows import Flows
from eroica.agent.roster import LocalWorker
from eroica.agent.witnesses import io_bytes, kernel_view
from eroica.hardware.tcp import SocketReader
from eroica.model.communication import HostCommunication, WorkerOperations
from eroica.model.worker import ProcessGroup
from eroica.settings import Settings

log = logging.getLogger("eroica.agent")
_READ_S, _FIND_S, _RECORD_S = 0.05, 2.0, 0.45
#: Finding may take this share of what reading may, for it is a peak.
_FINDING_SHARE = 0.5
_JITTER = 0.5
_LONGEST_PAUSE_S = 1.0
_TICKS_S = 0.05
_MOST_CHILDREN = 16
#: Share of a core that reading the workers' connections may take.
_CORE_SHARE = 0.01


class Communication:
    """The records of one host.

    Args:
        settings: `communication`, `communication_hz`.
        workers: The living workers.
        is_busy: Looks are taken: nobody is asked.
        clock: Seconds, monotonic.

    Attributes:
        notes: What could not be had, and why.
    """

    def __init__(
        self,
        settings: Settings,
        workers: Callable[[], Sequence[LocalWorker]],
        is_busy: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.notes: list[str] = []
        self._on = settings.communication
        self._period_s = 1.0 / settings.communication_hz if settings.communication_hz > 0 else 0.0
        self._workers = workers
        self._is_busy = is_busy
        self._clock = clock
        self._flows = Flows()
        self._reader: SocketReader | None = None
        self._countings: dict[int, Counting] = {}
        self._told: dict[int, tuple[int, int, int]] = {}
        self._found_at = self._read_at = float("-inf")
        self._find_s, self._read_s = _FIND_S, _READ_S
        self._taken_at = clock()
        self._readings, self._reading_s = 0, 0.0

    async def run(self) -> None:
        """Read until cancelled; whatever fails costs this sense only."""
        if not self._on:
            return
        try:
            self._reader = SocketReader()
        except OSError as error:
            self.notes.append(f"connections are not watched: {error.strerror or error}")
        try:
            while True:
                self.poll()
                await asyncio.sleep(_TICKS_S * random.uniform(1 - _JITTER, 1 + _JITTER))
        except Exception as error:
            log.exception("communication is not watched any more")
            self.notes.append(f"communication is not watched any more: {error}")
        finally:
            if self._reader is not None:
                self._reader.close()
            for counting in self._countings.values():
                counting.close()

    def poll(self) -> None:
        """One look at sockets, and at answers."""
        now, workers = self._clock(), self._workers()
        self._count(now, workers)
        if self._reader is None or not workers:
            return
        began = time.thread_time()  # what others take from us is no cost of ours
        try:
            if now - self._found_at >= self._find_s:
                self._find(now, workers, self._reader)
                self._find_s = max(_FIND_S, (time.thread_time() - began) / (_CORE_SHARE * _FINDING_SHARE))
            elif now - self._read_at >= self._read_s - _TICKS_S * _JITTER and self._flows.active:
                self._flows.read(now, self._reader.again(self._flows.active))
                self._read_s = max(_READ_S, min(_LONGEST_PAUSE_S, (time.thread_time() - began) / _CORE_SHARE))
                self._read_at = now
            else:
                return
        except (OSError, ValueError) as error:
            note = f"connections could not be read: {error}"
            self.notes += [note] if note not in self.notes and len(self.notes) < 5 else []
            self._found_at = now
        self._readings += 1
        self._reading_s += time.thread_time() - began

    def _find(self, now: float, workers: Sequence[LocalWorker], reader: SocketReader) -> None:
        found = reader.find(worker.worker.pid for worker in workers)
        ranks = {worker.worker.pid: worker.worker.global_rank for worker in workers}
        stores = frozenset(int(worker.reader.identity.get("master_port") or 0) for worker in workers)
        self._flows.found(now, {ranks[pid]: ones for pid, ones in found.items()}, stores)
        self._found_at = self._read_at = now

    def _count(self, now: float, workers: Sequence[LocalWorker]) -> None:
        here = {worker.worker.pid for worker in workers}
        for pid in self._countings.keys() - here:
            self._countings.pop(pid).close()
            self._told.pop(pid, None)
        busy = self._is_busy()
        for worker in workers:
            counting = self._countings.get(worker.worker.pid)
            if counting is None:
                counting = self._countings[worker.worker.pid] = Counting(worker.reader.path, self._period_s)
            # groups come and are used for the first time while it learns, and then torch's counters change their places
            counting.poll(now, not busy and not worker.learns)

    def take(self) -> HostCommunication | None:
        """The record since the last one; None if that is not a second old yet."""
        now = self._clock()
        if not self._on or now - self._taken_at < _RECORD_S:
            return None
        workers = self._workers()
        record = HostCommunication(
            interval_s=now - self._taken_at,
            workers=tuple(self._operations(now, worker) for worker in workers),
            flows=self._flows.take(),
            groups=self._named(workers),
            readings=self._readings,
            reading_s=self._reading_s,
        )
        self._taken_at, self._readings, self._reading_s = now, 0, 0.0
        return record

    def _named(self, workers: Sequence[LocalWorker]) -> tuple[ProcessGroup, ...]:
        by_name: dict[tuple[str, tuple[int, ...]], ProcessGroup] = {}
        for worker in workers:
            counting = self._countings.get(worker.worker.pid)
            for group in counting.groups if counting is not None else ():
                by_name[group.name, group.ranks] = group
        return tuple(by_name.values())

    def _operations(self, now: float, worker: LocalWorker) -> WorkerOperations:
        pid = worker.worker.pid
        state, process_s = kernel_view(pid)
        cpu_s = kernel_view(pid, worker.training_thread_id)[1] or 0.0
        children = _children(pid)
        started = [one for child in children for one in _children(child)][:_MOST_CHILDREN]
        counting = self._countings.get(pid)
        so_far = (counting.asked, counting.answered, counting.inside) if counting is not None else (0, 0, 0)
        asked, answered, inside = (new - old for new, old in zip(so_far, self._told.get(pid, (0, 0, 0)), strict=True))
        self._told[pid] = so_far
        return WorkerOperations(
            worker=worker.worker.global_rank,
            asked=asked,
            answered=answered,
            inside=inside,
            counts=counting.counts if counting is not None else (),
            unanswered_s=counting.unanswered_s(now) if counting is not None else 0.0,
            state=state,
            cpu_s=cpu_s + _cpu_s(children),
            io_bytes=io_bytes(pid, worker.training_thread_id),
            elsewhere_cpu_s=max(0.0, (process_s or 0.0) - cpu_s) + _cpu_s(started),
            heard=worker.silence.heard,
        )


def _cpu_s(pids: Iterable[int]) -> float:
    return sum(kernel_view(pid)[1] or 0.0 for pid in pids)


def _children(pid: int) -> list[int]:
    """Children that the main thread has started, the first few: a loader's work is the worker's."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in text.split()[:_MOST_CHILDREN]]
