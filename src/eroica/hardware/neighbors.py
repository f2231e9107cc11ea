"""What other processes of the host take while a window is open: surveys of /proc from its start to its end.

A process that stays below a twentieth of a core and a tenth of the memory is not followed, and nothing is asked of it
but one file. Children that
lived too briefly to be seen count for the parent that waited for them (a build, a shell loop).
"""

from __future__ import annotations

import contextlib
import os
import time

from eroica.hardware.household import Household, Process, hidden_because, read_processes
from eroica.hardware.processes import threads_of
from eroica.hardware.writer import Channel, SampleWriter, Track

LEAST_CORES = 0.05
"""Cores from which a process is followed..."""
LEAST_MEMORY = 0.1
"""...or share of the host's memory, though it sleeps."""
MOST_FOLLOWED = 48
MOST_THREADS = 32
"""Threads whose waiting for a core is read, of each process followed."""
_FIRST_NS = 250_000_000
_PERIOD_NS = 2_000_000_000
_SHARE_OF_CORE = 200
_JIFFY_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_TICKS = os.sysconf("SC_CLK_TCK")
_MUCH_MEMORY = LEAST_MEMORY * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

Key = tuple[int, int]


class _Followed:
    """Channels of one process."""

    def __init__(self, writer: SampleWriter, process: Process, name: str) -> None:
        self.process = process
        device = f"{process.pid}/{name}"
        self._writer = writer
        self._cpu = Track(writer, writer.declare(_channel("neighbor_cpu", device, "cores"), "counter", 1e-9))
        self._wait = Track(writer, writer.declare(_channel("neighbor_wait", device, "s/s"), "counter", 1e-9))
        self._memory = writer.declare(_channel("neighbor_memory", device, "B"))
        self._age = writer.declare(_channel("neighbor_age", device, "s"))
        self._waits: dict[int, int] = {}
        self._waited = 0

    def put_cpu(self, now_ns: int, used_ns: int) -> None:
        self._cpu.put(now_ns, used_ns)

    def put(self, now_ns: int, process: Process) -> None:
        """Its memory, age and waiting."""
        began_s = process.start / _TICKS
        self._writer.add(self._memory, now_ns, process.resident_bytes)
        self._writer.add(self._age, now_ns, max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s))
        for tid in threads_of(process.pid)[:MOST_THREADS]:
            waited = _waited_ns(process.pid, tid)
            self._waited += max(0, waited - self._waits.get(tid, waited))
            self._waits[tid] = waited
        self._wait.put(now_ns, self._waited)

    def mark(self) -> None:
        self._cpu.mark()
        self._wait.mark()


def _channel(name: str, device: str, unit: str) -> Channel:
    return Channel(name, device, unit, resolution_ns=_PERIOD_NS)


def _waited_ns(pid: int, tid: int) -> int:
    """Time a thread was ready but without a core so far; 0 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:  # noqa: PTH123 - of many threads
            return int(file.read(96).split()[1])
    except (OSError, LookupError, ValueError):
        return 0


class NeighborProbe:
    """Surveys the host's processes.

    Channels, device "<pid>/<name>": "neighbor_cpu" (cores, ended children included), "neighbor_wait" (seconds per
    second in which its threads were ready but without a core, summed over them), "neighbor_memory" (resident bytes),
    "neighbor_age" (seconds since it began). And "survey_cpu" (cores) of all processes seen, device "job", "ours"
    (Eroica's) or "outside".
    A survey that takes long comes more rarely, so that all of them together cost half a percent of a core.

    Args:
        writer: Where to.
        household: Who belongs to the job and to Eroica.
    """

    period_ns = _FIRST_NS

    def __init__(self, writer: SampleWriter, household: Household) -> None:
        self._writer = writer
        self._household = household
        self._kernel: set[int] = set()
        self._before: dict[int, Process] = {}
        self._before_ns = 0
        self._paid: dict[Key, int] = {}
        self._paid_before: dict[Key, int] = {}
        self._followed: dict[Key, _Followed] = {}
        self._sums = {"job": 0, "outside": 0, "ours": 0}
        self._totals = {
            whose: Track(writer, writer.declare(_channel("survey_cpu", whose, "cores"), "counter", 1e-9))
            for whose in self._sums
        }
        reason = hidden_because()
        if reason:
            writer.note(f"processes beside the job cannot all be seen: {reason}")
        self._due_ns = 0
        self._survey()
        self._due_ns = self._before_ns + _FIRST_NS

    def read(self) -> None:
        """Survey, if it is time for it."""
        if time.monotonic_ns() >= self._due_ns:
            self._survey()

    def close(self) -> None:
        """The last survey."""
        with contextlib.suppress(OSError, ValueError):
            self._survey()
        for track in self._totals.values():
            track.mark()
        for followed in self._followed.values():
            followed.mark()

    def _survey(self) -> None:
        began_ns, now_ns = time.thread_time_ns(), time.monotonic_ns()
        everybody = read_processes(self._kernel)
        self._kernel.update(process.pid for process in everybody.values() if process.kernel)
        processes = {pid: process for pid, process in everybody.items() if not process.kernel}
        self._household.sort(processes)
        if self._before_ns:
            self._compare(processes, now_ns)
        for whose, track in self._totals.items():
            track.put(now_ns, self._sums[whose])
        self._before, self._before_ns = processes, now_ns
        cost_ns = time.thread_time_ns() - began_ns
        self._due_ns = now_ns + max(_PERIOD_NS, _SHARE_OF_CORE * cost_ns)

    def _compare(self, processes: dict[int, Process], now_ns: int) -> None:
        self._settle_ended(processes)
        least_ns = max(LEAST_CORES * (now_ns - self._before_ns), 2 * _JIFFY_NS)
        for process in processes.values():
            key, before = (process.pid, process.start), self._earlier(process)
            used = process.total_ns - self._paid.get(key, 0)
            grown = max(0, used - before)
            heavy = grown >= least_ns or process.resident_bytes >= _MUCH_MEMORY
            whose = self._whose(process, heavy)
            self._sums[whose] += grown
            if whose == "outside" and heavy:
                self._follow(process, before)
            if key in self._followed:
                self._followed[key].put_cpu(now_ns, used)
                self._followed[key].put(now_ns, process)

    def _whose(self, process: Process, heavy: bool) -> str:
        """Whose process it is; the light ones that are no relatives are not looked at closely."""
        if process.pid in self._household.job:
            return "job"
        if process.pid in self._household.ours:
            return "ours"
        return "outside" if not heavy or self._household.is_stranger(process) else "ours"

    def _earlier(self, process: Process) -> int:
        """CPU time at the last survey, less what is paid for; 0 for one that was not there."""
        before = self._before.get(process.pid)
        if before is None or before.start != process.start:
            return 0
        return before.total_ns - self._paid_before.get((process.pid, process.start), 0)

    def _settle_ended(self, processes: dict[int, Process]) -> None:
        """CPU time of ended children that was seen already does not count again for the parent that waited for them."""
        self._paid_before = dict(self._paid)
        for process in self._before.values():
            now = processes.get(process.pid)
            if now is not None and now.start == process.start:
                continue
            heir = self._before.get(process.parent)
            while heir is not None and heir.pid not in processes:
                heir = self._before.get(heir.parent)
            if heir is not None:
                key = (heir.pid, heir.start)
                self._paid[key] = self._paid.get(key, 0) + process.total_ns

    def _follow(self, process: Process, before_ns: int) -> None:
        key = (process.pid, process.start)
        if key in self._followed or len(self._followed) >= MOST_FOLLOWED:
            return
        followed = self._followed[key] = _Followed(self._writer, process, self._household.name_of(process))
        followed.put_cpu(self._before_ns, before_ns)
