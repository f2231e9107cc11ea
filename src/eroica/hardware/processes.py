"""One worker and everything that belongs to it: its threads, its data-loader children and theirs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from eroica.hardware.cpu import ProcessProbe, ThreadProbe, parse_state
from eroica.hardware.writer import SampleWriter

MAX_THREADS = 128
"""Threads sampled per process; a process with more is a pool whose members look alike."""
MAX_CHILDREN = 64
"""Descendants sampled per worker."""
_GENERATIONS = 3
_GONE = frozenset(b"ZXx")
_STRANGERS = frozenset({os.getpid(), os.getppid()})

_Probe = TypeVar("_Probe")


class Target(NamedTuple):
    """A worker to sample.

    Attributes:
        pid: Its process id.
        tid: Kernel thread id of its training thread; the main thread's is the pid.
    """

    pid: int
    tid: int


def threads_of(pid: int) -> list[int]:
    """Kernel thread ids of a process; empty once it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - asked for five times a second
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return parse_state(file.read(96)) not in _GONE
    except (OSError, ValueError):
        return False


def children_of(pid: int, threads: tuple[int, ...]) -> list[int]:
    """Children that these threads of a process started; [] where the kernel does not keep them (PROC_CHILDREN)."""
    found: list[int] = []
    for tid in threads:
        try:
            with open(f"/proc/{pid}/task/{tid}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
        except OSError:
            continue
    return found


def descendants(target: Target, strangers: frozenset[int] = frozenset()) -> list[int]:
    """Children of the worker's training and main thread, and theirs, at most `MAX_CHILDREN`.

    Args:
        target: The worker.
        strangers: Processes that do not count, nor their children: a worker may have started the agent.
    """
    found: list[int] = []
    layer = children_of(target.pid, tuple({target.pid, target.tid}))
    for _ in range(_GENERATIONS):
        layer = [pid for pid in layer if pid not in strangers]
        found += layer
        if not layer or len(found) >= MAX_CHILDREN:
            break
        layer = [grandchild for child in layer for grandchild in children_of(child, (child,))]
    return found[:MAX_CHILDREN]


class WorkerProbe:
    """Samples one worker: `read_fast` its training thread, `read` everything else; `refresh` finds who came and went.

    Args:
        writer: Where to.
        target: The worker.
        fast_ns: How often `read_fast` is going to be called.
        refresh_ns: How often to look for new threads and children.
    """

    period_ns = 10_000_000

    def __init__(self, writer: SampleWriter, target: Target, fast_ns: int) -> None:
        self.target = target
        self.alive = is_alive(target.pid)
        self._fast_reads = 0
        self._reads = 0
        self._since_ns = time.monotonic_ns()
        self._writer = writer
        self._fast: ThreadProbe | None = None
        self._fast_channels: list[int] = []
        self._channels: list[int] = []
        self._threads: dict[tuple[int, int], ThreadProbe] = {}
        self._processes: dict[int, ProcessProbe] = {}
        if self.alive:
            self._fast = self._thread(target.pid, target.tid, fast_ns, state=True)
            self._fast_channels = self._fast.clock_channels if self._fast else []
            self.refresh()

    def refresh(self) -> None:
        """Pick up new threads and children."""
        self.alive = is_alive(self.target.pid)
        if not self.alive:
            return
        for pid in (self.target.pid, *descendants(self.target, _STRANGERS)):
            self._refresh_process(pid)

    def _refresh_process(self, pid: int) -> None:
        if pid not in self._processes:
            process = self._probe(lambda: ProcessProbe(self._writer, pid, self.period_ns), f"process {pid}")
            if process is not None:
                self._processes[pid] = process
        for tid in sorted(threads_of(pid))[:MAX_THREADS]:
            if (pid, tid) not in self._threads and tid != self.target.tid:
                thread = self._thread(pid, tid, self.period_ns, state=tid == pid)
                if thread is not None:
                    self._threads[pid, tid] = thread
                    self._channels += thread.clock_channels

    def _thread(self, pid: int, tid: int, period_ns: int, state: bool) -> ThreadProbe | None:
        return self._probe(lambda: ThreadProbe(self._writer, pid, tid, period_ns, state), f"thread {pid}/{tid}")

    def _probe(self, make: Callable[[], _Probe], what: str) -> _Probe | None:
        try:
            return make()
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            self._writer.note(f"{what} left out: {error.strerror}")
            return None

    def read_fast(self) -> None:
        """Sample the training thread."""
        if self._fast is None:
            return
        try:
            self._fast.read()
            self._fast_reads += 1
        except (OSError, ValueError):
            self._fast.close()
            self._fast = None

    def read(self) -> None:
        """Sample all other threads and the processes."""
        self._reads += 1
        gone: list[tuple[int, int]] = []
        for key, thread in self._threads.items():
            try:
                thread.read()
            except (OSError, ValueError):
                gone.append(key)
        for key in gone:
            self._threads.pop(key).close()
        for pid, process in tuple(self._processes.items()):
            try:
                process.read()
            except OSError:
                self._processes.pop(pid).close()

    def mark(self) -> None:
        """Write down how long unchanged clocks have held."""
        for thread in (*self._threads.values(), *((self._fast,) if self._fast else ())):
            thread.mark()

    def close(self) -> None:
        """Write down the last moment and the pace achieved, and give all descriptors back."""
        elapsed_ns = time.monotonic_ns() - self._since_ns
        for channels, reads in ((self._fast_channels, self._fast_reads), (self._channels, self._reads)):
            if channels and reads:
                self._writer.achieved(channels, elapsed_ns // reads)
        for probe in (*self._threads.values(), *self._processes.values(), *((self._fast,) if self._fast else ())):
            probe.close()
        self._threads.clear()
        self._processes.clear()
        self._fast = None
