"""Who is at home on this host: the job's own processes, Eroica's, and everybody else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_JIFFY_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KERNEL_THREAD = 0x0020_0000
_INITIAL_NAMESPACE = "pid:[4026531836]"
_INTERPRETERS = re.compile(r"(python[\d.]*|pypy[\d.]*|perl|ruby|node|bash|dash|sh|pt_main_thread)$")
_PYTHON = re.compile(r"(python[\d.]*|pypy[\d.]*|pt_main_thread)$")
#: Python's options that may stand before a script, alone and with a value; behind any other one there may be a secret.
_ALONE = frozenset({"-u", "-B", "-E", "-I", "-s", "-S", "-P", "-O", "-OO"})
_WITH_VALUE = frozenset({"-W", "-X"})
_SCRIPT = re.compile(r"[\w.+-]{1,45}\.(py|pl|rb|js|sh)", re.ASCII)
_MODULE = re.compile(r"[\w.]{1,48}", re.ASCII)


class Process(NamedTuple):
    """What `/proc/<pid>/stat` says of a process.

    Attributes:
        pid: Its id.
        name: Its command's name, at most 15 characters.
        parent: Process id of its parent.
        kernel: It is a thread of the kernel.
        used_ns: CPU time of its threads, ended ones included; moves in steps of a jiffy (10 ms).
        total_ns: The same with its children that have ended and were waited for.
        start: When it began, clock ticks since boot; with the id it names the process for good.
        resident_bytes: Memory it holds.
    """

    pid: int
    name: str
    parent: int
    kernel: bool
    used_ns: int
    total_ns: int
    start: int
    resident_bytes: int


def parse_process(stat: bytes) -> Process:
    """Read `/proc/<pid>/stat`.

    Raises:
        ValueError: It is cut short.
    """
    opening, closing = stat.find(b"("), stat.rfind(b")")
    fields = stat[closing + 2 :].split()
    if opening < 1 or len(fields) < 22:
        raise ValueError(f"no process in {stat[:40]!r}")
    own = (int(fields[11]) + int(fields[12])) * _JIFFY_NS
    return Process(
        pid=int(stat[:opening]),
        name=printable(stat[opening + 1 : closing].decode("utf-8", "replace")),
        parent=int(fields[1]),
        kernel=bool(int(fields[6]) & _KERNEL_THREAD),
        used_ns=own,
        total_ns=own + (int(fields[13]) + int(fields[14])) * _JIFFY_NS,
        start=int(fields[19]),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def printable(text: str) -> str:
    """A name that a process gave itself, as one can show it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def read_processes(without: Iterable[int] = ()) -> dict[int, Process]:
    """All processes that /proc shows, by id, less those left out."""
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
    """Why other processes of this host cannot be seen from here; empty if they can."""
    try:
        if not Path("/proc/1/stat").read_bytes():
            return "/proc shows only our own processes (hidepid)"
        if str(Path("/proc/self/ns/pid").readlink()) != _INITIAL_NAMESPACE:
            return "this is a container with process ids of its own"
    except OSError:
        return "/proc shows only our own processes (hidepid)"
    return ""


def arguments_of(pid: int) -> list[str]:
    """Its command line; empty for one that is gone or hides it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def display_name(name: str, arguments: Sequence[str]) -> str:
    """A process's name for people: "python (serve.py)" where an interpreter runs a script, else the command's name.

    Of the command line nothing but the script's own name or the module's is taken, and only where they look like one:
    arguments may hold secrets.
    """
    if not arguments:
        return name
    program = Path(arguments[0]).name.lstrip("-")
    script = _script(arguments[1:], bool(_PYTHON.match(program))) if _INTERPRETERS.match(program) else ""
    return f"{name} ({script})" if script and script != name else name


def _script(arguments: Sequence[str], python: bool) -> str:
    """The script or module that an interpreter runs; "" where an option is not known to be harmless."""
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


_START = "from eroica.start import"  # in the one line of Python that `scripts/eroica` runs


def is_eroicas(arguments: Sequence[str]) -> bool:
    """Whether a command line is of one of our own programs."""
    return any(argument.startswith("eroica.") or _START in argument for argument in arguments[:8]) or "eroica" in (
        Path(argument).name for argument in arguments[:5]
    )


class Rank(NamedTuple):
    """What the environment of a rank of a job says: its number, and where it meets the others. Empty for no rank."""

    number: str = ""
    address: str = ""
    port: str = ""

    @property
    def meets_at(self) -> tuple[str, str]:
        """Address and port; empty where the environment does not say."""
        return self.address, self.port


def rank_of(pid: int) -> Rank:
    """Which rank of which job a process is, by its environment."""
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
    """Tells the job's and Eroica's processes from everybody else's.

    The job's are the workers, all they started, and everybody above them up to the launcher and beyond, but not what
    those started beside the workers: a shell that runs a benchmark next to the training is a different matter. Another
    rank that meets where ours do is the job's, too; what has a worker's own rank without being below it was started by
    a worker and left behind, and is a stranger. Eroica's are its agent, what that started, and its own programs.

    Args:
        workers: Process ids of the job's workers on this host.
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
        """Find out anew who belongs to whom."""
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
        """Whether it is none of the job's or Eroica's; looks at the command line and environment, once."""
        if process.pid in self.job or process.pid in self.ours:
            return False
        key = (process.pid, process.start)
        if key not in self._known:
            arguments = arguments_of(process.pid)
            related = is_eroicas(arguments) or self._is_rank(process.pid)
            self._known[key] = "" if related else display_name(process.name, arguments)
        return bool(self._known[key])

    def name_of(self, process: Process) -> str:
        """Its name for people."""
        return self._known.get((process.pid, process.start)) or process.name

    def _is_rank(self, pid: int) -> bool:
        if self._ranks is None:
            self._ranks = {rank for rank in map(rank_of, self._workers) if rank.meets_at != ("", "")}
        rank = rank_of(pid)
        return rank not in self._ranks and any(rank.meets_at == ours.meets_at for ours in self._ranks)


def _below(roots: Iterable[int], children: dict[int, list[int]]) -> set[int]:
    """These processes and all their descendants."""
    found: set[int] = set()
    layer = list(roots)
    while layer:
        pid = layer.pop()
        if pid not in found:
            found.add(pid)
            layer += children.get(pid, ())
    return found
