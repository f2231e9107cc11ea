"""Python stacks of a worker and its data-loader children, sampled from outside by py-spy.

py-spy reads the memory of the process without stopping it. Each process gets a py-spy of its own, and the files become
one at the end. py-spy's option to follow children writes the whole stack anew at every sample once a forked child
shares its parent's thread id. Measured with 4 loader children: 6 MB a second and 29 % of a core, against 0.06 MB and
14 %.

Its clock starts about 1 ms after it was spawned (measured on a quiet host 0.6 to 1.5 ms). On a busy host we may only
learn of the spawn later; the time we ourselves waited for a CPU is taken off again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from eroica.agent.witnesses import ask_py_spy, find_py_spy, py_spy_reason
from eroica.errors import UnavailableError
from eroica.hardware.cpu import Target, descendants, parse_schedstat, threads_of

STACKS_FILE = "stacks.json"
META_FILE = "stacks.meta.json"

_CLOCK_DELAY_NS = 1_000_000
_FOLLOW_S = 0.2
_MOST_CHILDREN = 8
_FEWEST_CHILDREN = 2
_LEAST_CHILD_HZ = 20
_ENDED_EARLY_US = 200_000.0
_HOST_SHARE = 0.04
_SAMPLE_S = 0.0003
_SAMPLE_THREAD_S = 0.000008
_LEAST_HZ = 20

_THREAD_FRAME = "thread ("


class Event(msgspec.Struct, gc=False):
    """A frame that begins ("B") or ends ("E"), as py-spy writes it; `ts` in microseconds."""

    ph: str
    name: str
    ts: float
    pid: int
    tid: int
    cat: str = "py-spy"
    args: msgspec.Raw = msgspec.Raw(b"{}")


class Part(NamedTuple):
    """One process's recording; its `ts` count from `start_ns` (CLOCK_MONOTONIC)."""

    pid: int
    start_ns: int
    events: list[Event]


_EVENTS = msgspec.json.Decoder(list[Event])


def available(pid: int, binary: Path | None = None, timeout_s: float = 5.0) -> tuple[bool, str]:
    """Tell whether the process's stacks can be sampled from outside, and if not, why.

    Takes one sample; measured 40 ms on a process that imported torch.

    Args:
        pid: A Python process.
        binary: py-spy, default `find_py_spy()`.
        timeout_s: Longest wait, s.
    """
    try:
        ask_py_spy(binary or find_py_spy(), pid, timeout_s)
    except UnavailableError as reason:
        return False, str(reason)
    return True, ""


def affordable_hz(pids: Iterable[int], wanted_hz: int) -> int:
    """The wanted rate, lowered where sampling all these processes would take more than 4 % of the host's cores.

    One sample costs 0.3 ms and 8 µs for each thread of the process (measured, py-spy 0.4.3 and torch 2.13).

    Args:
        pids: All processes to be sampled on this host.
        wanted_hz: Samples per second and process.
    """
    cores = len(os.sched_getaffinity(0))
    cost_s = sum(_SAMPLE_S + _SAMPLE_THREAD_S * len(threads_of(pid)) for pid in pids)
    if cost_s <= 0:
        return wanted_hz
    return max(min(wanted_hz, _LEAST_HZ), min(wanted_hz, int(_HOST_SHARE * cores / cost_s)))


def affordable_children(workers: int) -> int:
    """Children of each worker to be sampled: as many as there are cores for a worker, two at least and eight at most.

    Loader processes are alike, so a few tell what all do, while every one of them costs its samples (`affordable_hz`).

    Args:
        workers: On this host.
    """
    return max(_FEWEST_CHILDREN, min(_MOST_CHILDREN, len(os.sched_getaffinity(0)) // max(workers, 1)))


def _waited_ns() -> int:
    """Nanoseconds that this thread has waited for a CPU so far; 0 where the kernel does not say."""
    try:
        return parse_schedstat(Path("/proc/thread-self/schedstat").read_bytes())[1]
    except (OSError, ValueError):
        return 0


class _Recording:
    """One py-spy on one process."""

    def __init__(self, binary: Path, pid: int, file: Path, hz: int, longest_s: int) -> None:
        self.pid = pid
        self.file = file
        self._log = file.with_suffix(".log")
        command = [
            str(binary),
            "record",
            "--nonblocking",
            "--idle",
            "--function",
            "--threads",
            "--format",
            "chrometrace",
        ]
        command += ["--rate", str(hz), "--duration", str(longest_s), "--pid", str(pid), "--output", str(file)]
        waited_ns, began_ns = _waited_ns(), time.monotonic_ns()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        begun_ns = time.monotonic_ns() - (_waited_ns() - waited_ns)
        self.start_ns = max(began_ns, begun_ns) + _CLOCK_DELAY_NS

    def interrupt(self) -> None:
        """Ask py-spy to write its file and end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self, deadline_s: float) -> str:
        """Wait for its end, kill it after the deadline (CLOCK_MONOTONIC); what went wrong, or nothing."""
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return "py-spy did not end in time and was killed"
        return "" if self.file.is_file() else py_spy_reason(self._log.read_bytes())

    def remove(self) -> None:
        """Remove its file and log."""
        self.file.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)


class StackSampler:
    """Samples the stacks of one worker, and of the children it has or gets, into `directory`.

    Writes `stacks.json` (py-spy's chrometrace form) and `stacks.meta.json` ({"start_monotonic_ns", "rate_hz",
    "source": "py-spy"}). Children are sampled at half the rate, less where there are more than four.

    Args:
        pid: The worker.
        directory: Exists; gets the files.
        hz: Samples per second.
        longest_s: py-spy ends by itself after this time, also when nobody is left to end it, s.
        most_children: So many children are sampled; see `affordable_children`.
    """

    def __init__(
        self,
        pid: int,
        directory: Path,
        hz: int = 100,
        longest_s: int = 300,
        most_children: int = _MOST_CHILDREN,
    ) -> None:
        self.pid = pid
        self._directory = directory
        self._hz = hz
        self._longest_s = longest_s
        self._binary = find_py_spy()
        self._most_children = most_children
        self._main: _Recording | None = None
        self._children: dict[int, _Recording] = {}
        self._stopping = threading.Event()
        self._follower = threading.Thread(target=self._follow, name=f"eroica-stacks-{pid}", daemon=True)

    def start(self) -> None:
        """Begin; the first sample comes about 25 ms later (50 ms on a busy host).

        Raises:
            UnavailableError: There is no py-spy, or it cannot be started.
        """
        if self._binary is None:
            raise UnavailableError("stacks cannot be sampled from outside: py-spy is not installed")
        try:
            self._main = _Recording(self._binary, self.pid, self._part(self.pid), self._hz, self._longest_s)
            self._write_meta(self._main.start_ns)
        except OSError as error:
            raise UnavailableError(f"stacks cannot be sampled from outside: {error}") from error
        self._follower.start()

    def interrupt(self) -> None:
        """Ask every py-spy to end, and return at once; with several workers, do this to all before the first `stop`."""
        self._stopping.set()
        for recording in self._recordings():
            recording.interrupt()

    def stop(self, timeout_s: float = 5.0) -> tuple[str, ...]:
        """End sampling and write the files.

        Args:
            timeout_s: After this time py-spy is killed, s; measured 10 to 60 ms.

        Returns:
            What is missing, for the window's notes.

        Raises:
            UnavailableError: There are no stacks of the worker; the text says why.
        """
        if self._main is None:
            raise UnavailableError("stacks were not sampled: the sampler was not started")
        deadline = time.monotonic() + timeout_s
        self.interrupt()
        self._follower.join(timeout_s)
        self.interrupt()
        problem = self._main.wait(deadline)
        lost = [recording.pid for recording in self._children.values() if recording.wait(deadline)]
        try:
            if problem:
                raise UnavailableError(f"no stacks of process {self.pid}: {problem}")
            self._join([self._main, *(one for one in self._children.values() if one.pid not in lost)])
        except OSError as error:
            raise UnavailableError(f"stacks of process {self.pid} cannot be written: {error}") from error
        finally:
            for recording in self._recordings():
                recording.remove()
        return (f"no stacks of children {', '.join(map(str, lost))}",) if lost else ()

    def _recordings(self) -> tuple[_Recording, ...]:
        return (*((self._main,) if self._main else ()), *tuple(self._children.values()))

    def _part(self, pid: int) -> Path:
        return self._directory / f"stacks-{pid}.part"

    def _write_meta(self, start_ns: int) -> None:
        meta = {"start_monotonic_ns": start_ns, "rate_hz": self._hz, "source": "py-spy"}
        (self._directory / META_FILE).write_text(json.dumps(meta), encoding="utf-8")

    def _follow(self) -> None:
        """Start a py-spy on each child as it appears; runs in a thread of its own until the stop."""
        me = frozenset({os.getpid()})
        while not self._stopping.is_set():
            found = [pid for pid in descendants(Target(self.pid, self.pid), me) if pid not in self._children]
            self._add_children(found[: max(0, self._most_children - len(self._children))])
            self._stopping.wait(_FOLLOW_S)

    def _add_children(self, pids: Sequence[int]) -> None:
        count = len(self._children) + len(pids)
        hz = max(min(self._hz, _LEAST_CHILD_HZ), min(self._hz // 2, 2 * self._hz // max(1, count)))
        for pid in pids:
            if self._stopping.is_set() or self._binary is None:
                return
            try:
                self._children[pid] = _Recording(self._binary, pid, self._part(pid), hz, self._longest_s)
            except OSError:
                return

    def _join(self, recordings: Sequence[_Recording]) -> None:
        parts = [Part(one.pid, one.start_ns, _read_events(one.file)) for one in recordings]
        (self._directory / STACKS_FILE).write_bytes(msgspec.json.encode(join_recordings(parts)))


def _read_events(file: Path) -> list[Event]:
    try:
        return _EVENTS.decode(file.read_bytes())
    except msgspec.DecodeError as error:
        raise UnavailableError(f"py-spy's {file.name} cannot be read: {error}") from error


def join_recordings(parts: Sequence[Part]) -> list[Event]:
    """The recordings of several processes as one, on the clock of the first.

    Every thread frame gets a frame of its process around it. Thread ids of all but the first are replaced, because a
    forked child has its parent's. A recording that ended well before the first leaves its threads with empty stacks
    from there on.
    """
    joined: list[Event] = []
    rows: dict[tuple[int, int], int] = {}
    end = 0.0
    for part in parts:
        if part is parts[0]:
            moved = part.events
            end = moved[-1].ts if moved else 0.0
        else:
            moved = _moved(part, (part.start_ns - parts[0].start_ns) / 1000, rows)
        joined += _with_process_frames(moved)
        if moved and end - moved[-1].ts > _ENDED_EARLY_US:
            joined += _emptied(moved)
    return joined


def _moved(part: Part, shift_us: float, rows: dict[tuple[int, int], int]) -> list[Event]:
    return [
        msgspec.structs.replace(
            event, ts=event.ts + shift_us, tid=rows.setdefault((part.pid, event.tid), len(rows) + 1)
        )
        for event in part.events
    ]


def _with_process_frames(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        if not event.name.startswith(_THREAD_FRAME):
            yield event
        elif event.ph == "B":
            yield from (_process_frame(event), event)
        else:
            yield from (event, _process_frame(event))


def _process_frame(event: Event) -> Event:
    return msgspec.structs.replace(event, name=f"process {event.pid}")


def _emptied(events: Sequence[Event]) -> Iterator[Event]:
    """Events after which every thread of a recording has only its process and thread frame."""
    threads = {event.tid: event for event in events if event.name.startswith(_THREAD_FRAME)}
    begins = [msgspec.structs.replace(event, ph="B", ts=events[-1].ts) for event in threads.values()]
    return _with_process_frames(begins)
