"""Other processes of the host: whose they are, and what they take while a window is open."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from eroica.hardware.writer import Channel, SampleWriter, Track

_JIFFY_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x0020_0000
_INITIAL_NAMESPACE = "pid:[4026531836]"
_INTERPRETERS = re.compile(r"(python[\d.]*|pypy[\d.]*|perl|ruby|node|bash|dash|sh|pt_main_thread)$")
_PYTHON = re.compile(r"(python[\d.]*|pypy[\d.]*|pt_main_thread)$")
#: Python's options before a script, alone and with a value; others may carry a secret.
_ALONE = frozenset({"-u", "-B", "-E", "-I", "-s", "-S", "-P", "-O", "-OO"})
_WITH_VALUE = frozenset({"-W", "-X"})
_SCRIPT = re.compile(r"[\w.+-]{1,45}\.(py|pl|rb|js|sh)", re.ASCII)
_MODULE = re.compile(r"[\w.]{1,48}", re.ASCII)
#: Least cores of a process that is followed.
LEAST_CORES = 0.05
#: Processes that are followed.
MOST_FOLLOWED = 48
_FIRST_NS = 250_000_000
_PERIOD_NS = 2_000_000_000
#: A survey comes so rarely that all of them cost 1/200 of a core.
_SHARE_OF_CORE = 200

Key = tuple[int, int]


class Process(NamedTuple):
    """A process in `/proc/<pid>/stat`.

    Attributes:
        name: Name of its command, at most 15 characters.
        kernel: Whether it is a thread of the kernel.
        total_ns: CPU time, in steps of a jiffy (10 ms), including children that ended and were waited for.
        start: Clock ticks since boot when it began; unique together with the id.
    """

    pid: int
    name: str
    parent: int
    kernel: bool
    total_ns: int
    start: int


def parse_process(stat: bytes) -> Process:
    """Read the text of `/proc/<pid>/stat`.

    Raises:
        ValueError: It is cut short.
    """
    opening, closing = stat.find(b"("), stat.rfind(b")")
    fields = stat[closing + 2 :].split()
    if opening < 1 or len(fields) < 20:
        raise ValueError(f"no process in {stat[:40]!r}")
    return Process(
        pid=int(stat[:opening]),
        name=printable(stat[opening + 1 : closing].decode("utf-8", "replace")),
        parent=int(fields[1]),
        kernel=bool(int(fields[6]) & _KERNEL_THREAD),
        total_ns=sum(map(int, fields[11:15])) * _JIFFY_NS,
        start=int(fields[19]),
    )


def printable(text: str) -> str:
    """Return a process's name without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def read_processes(without: Iterable[int] = ()) -> dict[int, Process]:
    """Return all processes in /proc by id, except those left out."""
    found: dict[int, Process] = {}
    left_out = frozenset(without)
    for name in os.listdir("/proc"):  # noqa: PTH208 - of thousands of processes on a large host
        if not name.isdecimal() or int(name) in left_out:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - thousands of processes
                process = parse_process(file.read(1024))
        except (OSError, ValueError):
            continue
        found[process.pid] = process
    return found


def hidden_because() -> str:
    """Return why other processes of this host cannot be seen; empty if they can."""
    try:
        if not Path("/proc/1/stat").read_bytes():
            return "/proc shows only our own processes (hidepid)"
        if str(Path("/proc/self/ns/pid").readlink()) != _INITIAL_NAMESPACE:
            return "this is a container with process ids of its own"
    except OSError:
        return "/proc shows only our own processes (hidepid)"
    return ""


def arguments_of(pid: int) -> list[str]:
    """Return a command line; empty if the process is gone or hides it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def display_name(name: str, arguments: Sequence[str]) -> str:
    """Return "python (serve.py)" where an interpreter runs a script, else the command's name.

    Arguments may hold secrets, so it takes only the name of the script or module.
    """
    if not arguments:
        return name
    program = Path(arguments[0]).name.lstrip("-")
    script = _script(arguments[1:], bool(_PYTHON.match(program))) if _INTERPRETERS.match(program) else ""
    return f"{name} ({script})" if script and script != name else name


def _script(arguments: Sequence[str], python: bool) -> str:
    """Return the script or module that an interpreter runs; "" behind unknown options."""
    rest = iter(arguments)
    for argument in rest:
        if python and argument == "-m":
            module = next(rest, "")
            return module if _MODULE.fullmatch(module) else ""
        if python and argument in _WITH_VALUE:
            next(rest, "")
        elif not (python and argument in _ALONE):
            script = Path(argument).name
            return script if not argument.startswith("-") and _SCRIPT.fullmatch(script) else ""
    return ""


_START = "from eroica.start import"  # the line of Python that `scripts/eroica` runs


def is_eroicas(arguments: Sequence[str]) -> bool:
    """Return whether a command line is one of Eroica's."""
    return any(argument.startswith("eroica.") or _START in argument for argument in arguments[:8]) or "eroica" in (
        Path(argument).name for argument in arguments[:5]
    )


class Rank(NamedTuple):
    """Rank and rendezvous in the environment of a process; empty for a process that is no rank."""

    number: str = ""
    address: str = ""
    port: str = ""

    @property
    def meets_at(self) -> tuple[str, str]:
        """Address and port."""
        return self.address, self.port


def rank_of(pid: int) -> Rank:
    """Read a process's rank from its environment."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return Rank()
    known: dict[str, str] = {}
    for pair in data.split(b"\0"):
        name, _, value = pair.partition(b"=")
        if name in (b"RANK", b"MASTER_ADDR", b"MASTER_PORT"):
            known[name.decode()] = value.decode("utf-8", "replace")
    if "RANK" not in known:
        return Rank()
    return Rank(known["RANK"], known.get("MASTER_ADDR", ""), known.get("MASTER_PORT", ""))


class Household:
    """Separates the job's and Eroica's processes from all others.

    The job's processes are the workers, their descendants and their ancestors, but not other children of those: a
    shell may run a benchmark next to the training. Ranks with our rendezvous are the job's, too, except one with a
    worker's own rank outside its descendants: a worker left it behind. Eroica's are its agent with its descendants,
    and its own programs.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self.job: set[int] = set()
        self.ours: set[int] = set()
        self._workers = tuple(workers)
        self._known: dict[tuple[int, int], str] = {}
        self._ranks: set[Rank] | None = None
        parent = os.getppid()
        self._roots = (parent,) if is_eroicas(arguments_of(parent)) else ()

    def sort(self, processes: dict[int, Process]) -> None:
        """Assign processes to the job and to Eroica."""
        children: dict[int, list[int]] = {}
        for process in processes.values():
            children.setdefault(process.parent, []).append(process.pid)
        self.ours = _below(self._roots, children) | {os.getpid()}
        self.job = _below([pid for pid in self._workers if pid in processes], children)
        self.ours -= set(self._workers)
        self.job -= self.ours
        for worker in self._workers:
            above = processes.get(worker)
            while above is not None and above.parent > 0 and above.parent not in self.job:
                above = processes.get(above.parent)
                if above is not None:
                    self.job.add(above.pid)

    def is_stranger(self, process: Process) -> bool:
        """Return whether a process is neither the job's nor Eroica's."""
        if process.pid in self.job or process.pid in self.ours:
            return False
        key = (process.pid, process.start)
        if key not in self._known:
            arguments = arguments_of(process.pid)
            related = is_eroicas(arguments) or self._is_rank(process.pid)
            self._known[key] = "" if related else display_name(process.name, arguments)
        return bool(self._known[key])

    def name_of(self, process: Process) -> str:
        """Return a process's display name."""
        return self._known.get((process.pid, process.start)) or process.name

    def _is_rank(self, pid: int) -> bool:
        if self._ranks is None:
            self._ranks = {rank for rank in map(rank_of, self._workers) if rank.meets_at != ("", "")}
        rank = rank_of(pid)
        return rank not in self._ranks and any(rank.meets_at == ours.meets_at for ours in self._ranks)


def _below(roots: Iterable[int], children: dict[int, list[int]]) -> set[int]:
    """Return these processes and all their descendants."""
    found: set[int] = set()
    layer = list(roots)
    while layer:
        pid = layer.pop()
        if pid not in found:
            found.add(pid)
            layer += children.get(pid, ())
    return found


def _cores(writer: SampleWriter, name: str, device: str) -> Track:
    """Declare a channel of CPU time."""
    channel = Channel(name, device, "cores", resolution_ns=_PERIOD_NS)
    return Track(writer, writer.declare(channel, "counter", 1e-9))


class NeighborProbe:
    """Surveys the host's processes while a window is open.

    Channels: "neighbor_cpu" (cores, ended children included), device "<pid>/<name>", and "survey_cpu" (cores) of all
    processes, device "job", "ours" (Eroica's) or "outside".
    Children that lived too briefly to be seen count for the parent that waited for them.
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
        self._followed: dict[Key, Track] = {}
        self._sums = {"job": 0, "outside": 0, "ours": 0}
        self._totals = {whose: _cores(writer, "survey_cpu", whose) for whose in self._sums}
        reason = hidden_because()
        if reason:
            writer.note(f"processes beside the job cannot all be seen: {reason}")
        self._due_ns = 0
        self._survey()
        self._due_ns = self._before_ns + _FIRST_NS

    def read(self) -> None:
        """Survey if it is due."""
        if time.monotonic_ns() >= self._due_ns:
            self._survey()

    def close(self) -> None:
        """Survey for the last time."""
        with contextlib.suppress(OSError, ValueError):
            self._survey()
        for track in (*self._totals.values(), *self._followed.values()):
            track.mark()

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
            heavy = grown >= least_ns
            whose = self._whose(process, heavy)
            self._sums[whose] += grown
            if whose == "outside" and heavy:
                self._follow(process, before)
            if key in self._followed:
                self._followed[key].put(now_ns, used)

    def _whose(self, process: Process, heavy: bool) -> str:
        """Return whose process it is; light ones are not looked at closely."""
        if process.pid in self._household.job:
            return "job"
        if process.pid in self._household.ours:
            return "ours"
        return "outside" if not heavy or self._household.is_stranger(process) else "ours"

    def _earlier(self, process: Process) -> int:
        """Return the CPU time at the last survey without ended children; 0 for a new process."""
        before = self._before.get(process.pid)
        if before is None or before.start != process.start:
            return 0
        return before.total_ns - self._paid_before.get((process.pid, process.start), 0)

    def _settle_ended(self, processes: dict[int, Process]) -> None:
        """Note the CPU time of ended children, so it does not count again for their parent."""
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
        device = f"{process.pid}/{self._household.name_of(process)}"
        self._followed[key] = _cores(self._writer, "neighbor_cpu", device)
        self._followed[key].put(self._before_ns, before_ns)
