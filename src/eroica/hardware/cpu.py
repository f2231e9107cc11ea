"""CPU channels from /proc: threads and processes of workers, and the cores of the host.

Thread clocks come from `schedstat`. They move when the thread leaves its CPU and at the scheduler's tick (4 ms at
250 Hz).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from eroica.errors import UsageError
from eroica.hardware.writer import Channel, SampleWriter, Track

_JIFFY_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MONOTONIC_COARSE = 6
_SHORTEST_PLACE = 2
#: States: asleep until another thread wakes it; asleep on something else (a timer, a pipe, a socket); asleep on
#: something that the kernel does not tell. The last two are not letters of the kernel.
ASLEEP, NAPPING, HIDDEN = map(ord, "SNH")
#: Threads sampled per process, and descendants per worker.
MAX_THREADS, MAX_CHILDREN = 128, 64
_GENERATIONS = 3
#: States of a process that has ended.
GONE = frozenset((b"Z", b"X", b"x"))
_STRANGERS = frozenset({os.getpid(), os.getppid()})

_Probe = TypeVar("_Probe")


def read_stat(pid: int, tid: int | None = None) -> list[bytes]:
    """Return the fields of a process's `stat`, or of one of its threads', from the state on; empty once it is gone."""
    place = f"/proc/{pid}" if tid is None else f"/proc/{pid}/task/{tid}"
    try:
        with open(f"{place}/stat", "rb") as file:  # noqa: PTH123 - five times a second
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def parse_schedstat(schedstat: bytes) -> tuple[int, int]:
    """Return nanoseconds on a CPU and nanoseconds waiting for one, both totals."""
    running, waiting, _ = schedstat.split()
    return int(running), int(waiting)


def parse_host_cpus(stat: bytes) -> dict[str, tuple[int, int]]:
    """Return busy and stolen nanoseconds of each core, totals, from `/proc/stat`."""
    cores: dict[str, tuple[int, int]] = {}
    for line in stat.splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].startswith(b"cpu") or fields[0] == b"cpu":
            continue
        user, nice, system, _, _, irq, softirq = (int(field) for field in fields[1:8])
        steal = int(fields[8]) if len(fields) > 8 else 0
        cores[fields[0].decode()] = ((user + nice + system + irq + softirq) * _JIFFY_NS, steal * _JIFFY_NS)
    return cores


def tick_ns() -> int:
    """Return the length of the scheduler's tick."""
    return int(time.clock_getres(_MONOTONIC_COARSE) * 1e9)


def _kind_of_sleep(place: bytes) -> int:
    """Return the state of a thread that sleeps in this function of the kernel.

    Locks and gloo wait in futexes. The kernel says "0" if it does not tell, or if the thread is awake by now.
    """
    if len(place) < _SHORTEST_PLACE:
        return HIDDEN
    return ASLEEP if b"futex" in place else NAPPING


class ThreadProbe:
    """One thread's clock every `period_ns`, and its state if wanted.

    Raises:
        OSError: The thread is gone, or /proc does not show it to us.
    """

    def __init__(self, writer: SampleWriter, pid: int, tid: int, period_ns: int, state: bool) -> None:
        device = f"{pid}/{tid}"
        self._descriptors: list[int] = []
        try:
            self._clock = self._open(pid, tid, "schedstat")
            self._state = self._open(pid, tid, "stat") if state else -1
        except OSError:
            self._close_descriptors()
            raise
        self._place = self._open_if_shown(pid, tid, "wchan") if state else -1
        self._last = b""
        self._writer = writer
        cpu = Channel("cpu", device, "fraction", capacity=1.0, resolution_ns=max(period_ns, tick_ns()))
        queue = Channel("run_queue", device, "fraction", capacity=1.0, resolution_ns=period_ns)
        self._cpu, self._waiting = (Track(writer, writer.declare(channel, "busy")) for channel in (cpu, queue))
        if state:
            self._state_number = writer.declare(Channel("state", device, "code", resolution_ns=period_ns))

    def _open(self, pid: int, tid: int, name: str) -> int:
        descriptor = os.open(f"/proc/{pid}/task/{tid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors.append(descriptor)
        return descriptor

    def _open_if_shown(self, pid: int, tid: int, name: str) -> int:
        """Return a descriptor, -1 where the kernel does not show the file."""
        try:
            descriptor = self._open(pid, tid, name)
            os.pread(descriptor, 32, 0)
        except OSError:
            return -1
        return descriptor

    def _kind_of_sleep(self) -> int:
        try:
            return _kind_of_sleep(os.pread(self._place, 32, 0)) if self._place >= 0 else HIDDEN
        except OSError:  # hidden now, or the thread is gone, which the clocks tell
            self._place = -1
            return HIDDEN

    def read(self) -> None:
        """Sample; raise OSError or ValueError once the thread is gone."""
        now_ns = time.monotonic_ns()
        if self._state >= 0:
            _, _, rest = os.pread(self._state, 96, 0).rpartition(b") ")
            (state,) = rest[:1]
            if state == ASLEEP:
                state = self._kind_of_sleep()
            self._writer.add(self._state_number, now_ns, state)
        data = os.pread(self._clock, 96, 0)
        if data == self._last:
            self._cpu.seen(now_ns)
            self._waiting.seen(now_ns)
            return
        self._last = data
        used, waited = parse_schedstat(data)
        self._cpu.put(now_ns, used)
        self._waiting.put(now_ns, waited)

    def mark(self) -> None:
        """Write how long unchanged clocks have held."""
        self._cpu.mark()
        self._waiting.mark()

    def close(self) -> None:
        """Mark and close."""
        self.mark()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


class ProcessProbe:
    """CPU time of a whole process, in cores, from its POSIX clock.

    Raises:
        OSError: The process is gone.
    """

    def __init__(self, writer: SampleWriter, pid: int, period_ns: int) -> None:
        self._clock = (~pid << 3) | 2
        time.clock_gettime_ns(self._clock)
        cores = len(os.sched_getaffinity(pid))
        channel = Channel("cpu_process", str(pid), "cores", cores, resolution_ns=max(period_ns, tick_ns()))
        self._number = writer.declare(channel, "counter", 1e-9)
        self._track = Track(writer, self._number)

    def read(self) -> None:
        """Sample; raise OSError once the process is gone."""
        used = time.clock_gettime_ns(self._clock)
        self._track.put(time.monotonic_ns(), used)

    def close(self) -> None:
        """Write down the last moment."""
        self._track.mark()


class HostProbe:
    """Busy and stolen time of every core, channels "cpu_host" and "cpu_steal", device "cpu<n>".

    The totals move in steps of a jiffy (10 ms); hosts with many cores are read less often.
    """

    def __init__(self, writer: SampleWriter, path: Path = Path("/proc/stat")) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._writer = writer
        cores = parse_host_cpus(self._pread())
        self.period_ns = 50_000_000 * max(1, len(cores) // 16)
        self._numbers = {core: self._declare(core) for core in cores}

    def _declare(self, core: str) -> tuple[int, int]:
        names = ("cpu_host", "cpu_steal")
        channels = [Channel(name, core, "fraction", 1.0, resolution_ns=self.period_ns) for name in names]
        return self._writer.declare(channels[0], "busy"), self._writer.declare(channels[1], "busy")

    def _pread(self) -> bytes:
        return os.pread(self._descriptor, 1 << 20, 0)

    def read(self) -> None:
        """Sample every core."""
        now_ns = time.monotonic_ns()
        for core, totals in parse_host_cpus(self._pread()).items():
            for number, total in zip(self._numbers.get(core, ()), totals, strict=False):
                self._writer.add(number, now_ns, total)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


# --- workers ---


class Target(NamedTuple):
    """A worker to sample: its process, and the kernel's id of its training thread."""

    pid: int
    tid: int


def parse_target(text: str) -> Target:
    """Read `1234` (the training thread is the main thread) or `1234:1250`.

    Raises:
        UsageError: It is neither.
    """
    pid, colon, tid = text.partition(":")
    if not pid.isdecimal() or (colon and not tid.isdecimal()) or not 0 < int(pid) < 1 << 31:
        raise UsageError(f"--pid takes PID or PID:TID, not {text!r}")
    return Target(pid=int(pid), tid=int(tid) if colon else int(pid))


def threads_of(pid: int) -> list[int]:
    """Return the kernel thread ids of a process; empty once it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - asked for five times a second
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    fields = read_stat(pid)
    return bool(fields) and fields[0] not in GONE


def children_of(pid: int, threads: tuple[int, ...]) -> list[int]:
    """Return the children that these threads started; [] without PROC_CHILDREN in the kernel."""
    found: list[int] = []
    for tid in threads:
        try:
            with open(f"/proc/{pid}/task/{tid}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
        except OSError:
            continue
    return found


def descendants(target: Target, strangers: frozenset[int] = frozenset()) -> list[int]:
    """Return the children of the worker's training and main thread, and theirs, at most `MAX_CHILDREN`.

    `strangers` and their children do not count: a worker may have started the agent.
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
    """Samples one worker: `read_fast` its training thread every `fast_ns`, `read` all other threads and processes."""

    period_ns = 10_000_000

    def __init__(self, writer: SampleWriter, target: Target, fast_ns: int) -> None:
        self.target = target
        self.alive = is_alive(target.pid)
        self._writer = writer
        self._fast: ThreadProbe | None = None
        self._threads: dict[tuple[int, int], ThreadProbe] = {}
        self._processes: dict[int, ProcessProbe] = {}
        if self.alive:
            self._fast = self._thread(target.pid, target.tid, fast_ns, state=True)
            self.refresh()

    def refresh(self) -> None:
        """Find new threads and children."""
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
        except (OSError, ValueError):
            self._fast.close()
            self._fast = None

    def read(self) -> None:
        """Sample all other threads and the processes."""
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
        """Write down the last moment, and give all descriptors back."""
        for probe in (*self._threads.values(), *self._processes.values(), *((self._fast,) if self._fast else ())):
            probe.close()
        self._threads.clear()
        self._processes.clear()
        self._fast = None
