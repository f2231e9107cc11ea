"""Python stacks of a worker and its data-loader children, sampled from outside by py-spy.

py-spy reads the memory of the process without stopping it. Each process gets a py-spy and a file of its own: py-spy's
option to follow children writes the whole stack anew at every sample once a forked child shares its parent's thread id.
Measured with 4 loader children: 6 MB a second and 29 % of a core, against 0.06 MB and 14 %.

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
from collections.abc import Iterable, Sequence
from pathlib import Path

from eroica.agent.witnesses import ask_py_spy, find_py_spy, py_spy_reason
from eroica.errors import UnavailableError
from eroica.hardware.cpu import Target, descendants, parse_schedstat, threads_of

_CLOCK_DELAY_NS = 1_000_000
_FOLLOW_S = 0.2
_MOST_CHILDREN = 8
_FEWEST_CHILDREN = 2
_LEAST_CHILD_HZ = 20
_HOST_SHARE = 0.04
_SAMPLE_S = 0.0003
_SAMPLE_THREAD_S = 0.000008
_LEAST_HZ = 20


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
        self._file = file
        self._hz = hz
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
        self._start_ns = max(began_ns, begun_ns) + _CLOCK_DELAY_NS

    def interrupt(self) -> None:
        """Ask py-spy to write its file and end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def wait(self, deadline_s: float) -> str:
        """Wait for its end, kill it after the deadline (CLOCK_MONOTONIC); what went wrong, or nothing.

        Raises:
            OSError: The directory cannot be written.
        """
        problem = ""
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            self._file.unlink(missing_ok=True)
            problem = "py-spy did not end in time and was killed"
        if self._file.is_file():
            meta = {"start_monotonic_ns": self._start_ns, "rate_hz": self._hz, "source": "py-spy"}
            self._file.with_suffix(".meta.json").write_text(json.dumps(meta), encoding="utf-8")
        else:
            problem = problem or py_spy_reason(self._log.read_bytes())
        self._log.unlink(missing_ok=True)
        return problem


class StackSampler:
    """Samples the stacks of one worker, and of the children it has or gets, into `directory`.

    Writes `stacks.json` (py-spy's chrometrace form) and `stacks.meta.json` ({"start_monotonic_ns", "rate_hz",
    "source": "py-spy"}), and `stacks-PID.json` with its own of each child. Children are sampled at half the rate, less
    where there are more than four.

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
            file = self._directory / "stacks.json"
            self._main = _Recording(self._binary, self.pid, file, self._hz, self._longest_s)
        except OSError as error:
            raise UnavailableError(f"stacks cannot be sampled from outside: {error}") from error
        self._follower.start()

    def interrupt(self) -> None:
        """Ask every py-spy to end, and return at once; with several workers, do this to all before the first `stop`."""
        self._stopping.set()
        for recording in (self._main, *tuple(self._children.values())):
            if recording is not None:
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
        try:
            problem = self._main.wait(deadline)
            lost = [str(recording.pid) for recording in self._children.values() if recording.wait(deadline)]
        except OSError as error:
            for recording in (self._main, *self._children.values()):
                recording.kill()
            raise UnavailableError(f"stacks of process {self.pid} cannot be written: {error}") from error
        if problem:
            raise UnavailableError(f"no stacks of process {self.pid}: {problem}")
        return (f"no stacks of children {', '.join(lost)}",) if lost else ()

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
                file = self._directory / f"stacks-{pid}.json"
                self._children[pid] = _Recording(self._binary, pid, file, hz, self._longest_s)
            except OSError:
                return
