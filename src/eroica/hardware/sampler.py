"""The sampler: a program that samples workers from outside during one window.

It uses only the standard library, because it starts at every window. It needs no rights, notes what it may not read,
runs at low priority, and slows down to stay within its budget.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from eroica.errors import EroicaError, UnavailableError
from eroica.hardware.cpu import HostProbe, Target, WorkerProbe, parse_target
from eroica.hardware.host import InterfaceProbe, RdmaProbe, ThrottleProbe
from eroica.hardware.neighbors import Household, NeighborProbe
from eroica.hardware.tcp import LinkProbe
from eroica.hardware.writer import SampleWriter

#: Samples per second of training threads.
HZ = 1000
#: Budget in cores per worker, at most this share of the host's cores, at least so many cores.
BUDGET_PER_WORKER, HOST_SHARE, _LEAST_BUDGET = 0.025, 0.02, 0.03
#: Most stretch of all periods, and factor from one note on it to the next.
_MOST_STRETCH, _TOLD_AGAIN = 10.0, 2.0
_NICE = 5
_REFRESH_NS = 200_000_000
_FLUSH_NS = 250_000_000
_SECOND_NS = 1_000_000_000


class Probe(Protocol):
    """A source that is read every `period_ns`."""

    period_ns: int

    def read(self) -> None:
        """Sample."""

    def close(self) -> None:
        """Write the last moment and close."""


class Pace:
    """The factor that stretches all periods to stay within a budget of cores."""

    def __init__(self, budget: float) -> None:
        self.stretch = 1.0
        self._budget = budget
        self._used_s = 0.0
        self._at_ns = 0

    def update(self, now_ns: int, used_s: float) -> bool:
        """Take in the CPU seconds used so far; return True if the pace was lowered."""
        before_ns, before_s = self._at_ns, self._used_s
        self._at_ns, self._used_s = now_ns, used_s
        if not before_ns or now_ns <= before_ns:
            return False
        cores = (used_s - before_s) / ((now_ns - before_ns) * 1e-9)
        if cores <= 1.1 * self._budget or self.stretch >= _MOST_STRETCH:
            return False
        self.stretch = min(_MOST_STRETCH, self.stretch * cores / self._budget)
        return True


@dataclass(slots=True)
class _Task:
    """A call that is due every `period_ns`."""

    call: Callable[[], None]
    period_ns: int
    due_ns: int


class Sampler:
    """Samples workers and their host into a directory, training threads `hz` times a second."""

    def __init__(self, targets: Sequence[Target], directory: Path, hz: int = HZ) -> None:
        self._writer = SampleWriter(directory)
        self._period_ns = _SECOND_NS // hz
        self._told = 1.0
        most = min(BUDGET_PER_WORKER * len(targets), HOST_SHARE * len(os.sched_getaffinity(0)))
        self._pace = Pace(max(_LEAST_BUDGET, most))
        self._workers = [WorkerProbe(self._writer, target, self._period_ns) for target in targets]
        self._probes = self._host_probes(targets)
        self._parent = os.getppid()
        self._tasks = self._schedule(time.monotonic_ns())

    def run(self, stopped: Callable[[], bool], seconds: float | None = None) -> None:
        """Sample until told to stop, the time is over, or the workers or the parent are gone."""
        began_ns = time.monotonic_ns()
        end_ns = began_ns + int(seconds * 1e9) if seconds is not None else 1 << 63
        next_ns = began_ns
        try:
            while next_ns < end_ns and not stopped() and self._wanted():
                for worker in self._workers:
                    worker.read_fast()
                now_ns = time.monotonic_ns()
                for task in self._tasks:
                    if task.due_ns <= now_ns:
                        task.call()
                        task.due_ns = max(task.due_ns + int(task.period_ns * self._pace.stretch), now_ns)
                next_ns = max(next_ns + int(self._period_ns * self._pace.stretch), now_ns)
                time.sleep(max(0, next_ns - time.monotonic_ns()) * 1e-9)
        finally:
            self.close()

    def close(self) -> None:
        """Write everything and close."""
        for probe in (*self._workers, *self._probes):
            probe.close()
        self._probes.clear()
        self._workers.clear()
        self._writer.close()

    def _wanted(self) -> bool:
        return any(worker.alive for worker in self._workers) and os.getppid() == self._parent

    def _host_probes(self, targets: Sequence[Target]) -> list[Probe]:
        household = Household(target.pid for target in targets)
        makers: list[Callable[[], Probe]] = [
            lambda: HostProbe(self._writer),
            lambda: NeighborProbe(self._writer, household),
            lambda: InterfaceProbe(self._writer),
            lambda: RdmaProbe(self._writer),
            lambda: LinkProbe(self._writer, [target.pid for target in targets]),
            lambda: _nvidia("NvidiaProbe", self._writer),
            lambda: _nvidia("NvidiaNeighborProbe", self._writer, household),
        ]
        makers += [lambda pid=target.pid: ThrottleProbe(self._writer, pid) for target in targets]  # type: ignore[misc]
        return [probe for make in makers if (probe := self._make(make)) is not None]

    def _make(self, make: Callable[[], Probe]) -> Probe | None:
        try:
            return make()
        except UnavailableError as error:
            self._writer.note(str(error))
        except FileNotFoundError:
            return None  # the host has no such device
        except Exception as error:  # noqa: BLE001 - one probe must not cost the others
            self._writer.note(f"left out: {_in_words(error)}")
        return None

    def _schedule(self, now_ns: int) -> list[_Task]:
        tasks = [_Task(self._writer.flush, _FLUSH_NS, now_ns + _FLUSH_NS)]
        tasks += [_Task(self._check, _SECOND_NS, now_ns)]
        for index, worker in enumerate(self._workers):
            offset = worker.period_ns * index // len(self._workers)
            tasks.append(_Task(worker.read, worker.period_ns, now_ns + offset))
            tasks.append(_Task(worker.refresh, _REFRESH_NS, now_ns + _REFRESH_NS + offset))
        tasks += [_Task(self._guarded(probe), probe.period_ns, now_ns) for probe in self._probes]
        return tasks

    def _guarded(self, probe: Probe) -> Callable[[], None]:
        """Return the probe's `read`, which ends at its first failure."""
        failed = False

        def read() -> None:
            nonlocal failed
            if failed:
                return
            try:
                probe.read()
            except Exception as error:  # noqa: BLE001 - see above
                failed = True
                self._writer.note(f"{type(probe).__name__} stopped: {_in_words(error)}")

        return read

    def _check(self) -> None:
        for worker in self._workers:
            worker.mark()
        slower = self._pace.update(time.monotonic_ns(), time.process_time())
        if slower and self._pace.stretch >= _TOLD_AGAIN * self._told:
            self._told = self._pace.stretch
            self._writer.note(f"sampling slowed down {self._pace.stretch:.1f} times to stay within its CPU budget")


def _in_words(error: Exception) -> str:
    """Return the message of an error, with its type for unexpected ones."""
    return str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"


def _nvidia(name: str, *arguments: object) -> Probe:
    """Return a probe of `hardware.nvidia`, which is imported only where there is a driver."""
    _need_nvidia_driver()
    from eroica.hardware import nvidia

    probe: Probe = getattr(nvidia, name)(*arguments)
    return probe


def _need_nvidia_driver() -> None:
    if not Path("/proc/driver/nvidia").exists() and not Path("/dev/nvidiactl").exists():
        raise FileNotFoundError("no NVIDIA driver on this host")


def sample_until_stopped(
    targets: Sequence[Target], directory: Path, hz: int = HZ, seconds: float | None = None
) -> None:
    """Sample at low priority until the time is over or SIGINT, SIGTERM or SIGHUP comes.

    Raises:
        UnavailableError: The directory cannot be written.
    """
    stop = False

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal stop
        stop = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    os.nice(_NICE)
    try:
        Sampler(targets, directory, hz).run(lambda: stop, seconds)
    except OSError as error:
        raise UnavailableError(f"samples cannot be written to {directory}: {error.strerror}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `eroica sample` without the imports of a command line, for the agent; return 1 if it cannot write."""
    parser = argparse.ArgumentParser(prog="eroica.hardware.sampler", allow_abbrev=False)
    parser.add_argument("--pid", dest="targets", type=parse_target, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hz", type=int, default=HZ)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args(arguments)
    try:
        sample_until_stopped(options.targets, options.out, options.hz, options.seconds)
    except EroicaError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
