"""CPU channels from /proc: what each thread uses, how long it waits for a CPU, and its state.

Thread clocks come from `schedstat`. They move when the thread leaves its CPU and at the scheduler's tick, so a busy
thread shows a new value every tick (4 ms at 250 Hz) however often the file is read.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from eroica.hardware.writer import Channel, SampleWriter, Track

_JIFFY_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MONOTONIC_COARSE = 6
_SHORTEST_PLACE = 2
ASLEEP = ord("S")
NAPPING = ord("N")
"""State, beside the kernel's letters: asleep, but not until another thread wakes it (a timer, a pipe, a socket)."""
HIDDEN = ord("H")
"""Asleep, and the kernel does not tell on what."""


def parse_state(stat: bytes) -> int:
    """Code of the state letter in `/proc/<pid>/task/<tid>/stat`, also where the name holds brackets or is all we read.

    Raises:
        ValueError: There is no state in it.
    """
    place = stat.rfind(b")") + 2
    if not 2 <= place < len(stat):
        raise ValueError(f"no thread state in {stat[:40]!r}")
    return stat[place]


def parse_schedstat(schedstat: bytes) -> tuple[int, int]:
    """(nanoseconds on a CPU, nanoseconds runnable but waiting for one) of a thread, both totals."""
    running, waiting, _ = schedstat.split()
    return int(running), int(waiting)


def parse_stat_clock(stat: bytes) -> tuple[int, int]:
    """The same from `stat`, in steps of a jiffy (10 ms); it does not know the waiting."""
    fields = stat[stat.rfind(b")") + 2 :].split(None, 13)
    return (int(fields[11]) + int(fields[12])) * _JIFFY_NS, 0


def parse_host_cpus(stat: bytes) -> dict[str, tuple[int, int]]:
    """Core name -> (busy, stolen by the hypervisor), totals in nanoseconds, from `/proc/stat`."""
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
    """Length of the scheduler's tick, the pace at which a busy thread's clock moves."""
    return int(time.clock_getres(_MONOTONIC_COARSE) * 1e9)


def schedstat_counts() -> bool:
    """Whether this kernel keeps thread clocks in nanoseconds; ours cannot be zero."""
    try:
        return parse_schedstat(Path("/proc/self/schedstat").read_bytes())[0] > 0
    except (OSError, ValueError):
        return False


def _kind_of_sleep(place: bytes) -> int:
    """Whether a thread that sleeps in this function of the kernel waits for another thread.

    Locks and gloo wait by futexes; who polls with pauses naps. The kernel says "0" where it does not tell, or the
    thread is awake by now.
    """
    if len(place) < _SHORTEST_PLACE:
        return HIDDEN
    return ASLEEP if b"futex" in place else NAPPING


class ThreadProbe:
    """One thread's clock, and its state if wanted; file descriptors stay open.

    Args:
        writer: Where to.
        pid: Its process.
        tid: Kernel thread id.
        period_ns: How often `read` is going to be called.
        state: Also sample the state, which costs more than the clocks: the kernel's letter, `NAPPING` or `HIDDEN`.

    Raises:
        OSError: The thread is gone, or /proc does not show it to us.
    """

    def __init__(self, writer: SampleWriter, pid: int, tid: int, period_ns: int, state: bool) -> None:
        device = f"{pid}/{tid}"
        fine = schedstat_counts()
        self._descriptors: list[int] = []
        try:
            self._clock = self._open(pid, tid, "schedstat" if fine else "stat")
            self._state = self._open(pid, tid, "stat") if state else -1
        except OSError:
            self._close_descriptors()
            raise
        self._place = self._open_if_shown(pid, tid, "wchan") if state else -1
        self._parse = parse_schedstat if fine else parse_stat_clock
        self._size = 96 if fine else 512
        self._last = b""
        self._writer = writer
        resolution = max(period_ns, tick_ns() if fine else _JIFFY_NS)
        cpu = Channel("cpu", device, "fraction", capacity=1.0, resolution_ns=resolution)
        self._cpu_number = writer.declare(cpu, "busy")
        self._cpu = Track(writer, self._cpu_number)
        self.clock_channels = [self._cpu_number]
        self._waiting: Track | None = None
        if fine:
            queue = Channel("run_queue", device, "fraction", capacity=1.0, resolution_ns=period_ns)
            self.clock_channels.append(writer.declare(queue, "busy"))
            self._waiting = Track(writer, self.clock_channels[1])
        if state:
            self._state_number = writer.declare(Channel("state", device, "code", resolution_ns=period_ns))

    def _open(self, pid: int, tid: int, name: str) -> int:
        descriptor = os.open(f"/proc/{pid}/task/{tid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors.append(descriptor)
        return descriptor

    def _open_if_shown(self, pid: int, tid: int, name: str) -> int:
        """-1 where the kernel does not show it to us."""
        try:
            descriptor = self._open(pid, tid, name)
            os.pread(descriptor, 32, 0)
        except OSError:
            return -1
        return descriptor

    def _kind_of_sleep(self) -> int:
        try:
            return _kind_of_sleep(os.pread(self._place, 32, 0)) if self._place >= 0 else HIDDEN
        except OSError:  # it is no longer shown to us; whether the thread is gone, the clocks tell
            self._place = -1
            return HIDDEN

    def read(self) -> None:
        """Sample; raises OSError or ValueError once the thread is gone."""
        now_ns = time.monotonic_ns()
        if self._state >= 0:
            state = parse_state(os.pread(self._state, 96, 0))
            if state == ASLEEP:
                state = self._kind_of_sleep()
            self._writer.add(self._state_number, now_ns, state)
        data = os.pread(self._clock, self._size, 0)
        if data == self._last:
            self._cpu.seen(now_ns)
            if self._waiting is not None:
                self._waiting.seen(now_ns)
            return
        self._last = data
        used, waited = self._parse(data)
        self._cpu.put(now_ns, used)
        if self._waiting is not None:
            self._waiting.put(now_ns, waited)

    def mark(self) -> None:
        """Write down how long unchanged clocks have held."""
        self._cpu.mark()
        if self._waiting is not None:
            self._waiting.mark()

    def close(self) -> None:
        """Mark and give the descriptors back."""
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
        """Sample; raises OSError once the process is gone."""
        used = time.clock_gettime_ns(self._clock)
        self._track.put(time.monotonic_ns(), used)

    def close(self) -> None:
        """Write down the last moment."""
        self._track.mark()


class HostProbe:
    """Busy and stolen time of every core of the host, channels "cpu_host" and "cpu_steal", device "cpu<n>".

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
