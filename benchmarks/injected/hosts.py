"""Faults of a worker's host and surroundings: processors shared, taken away or wrongly set."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from eroica.demo.faults import Fault, Place, end_program, start_program
from eroica.errors import UsageError

HOUSEKEEPING_PROGRAM = Path(__file__).with_name("housekeeping.py")
PERIOD_US = 100_000


@dataclass(frozen=True)
class QuotaGroup:
    """A control group of one process.

    Attributes:
        directory: Its directory.
        before: The directory of the group that the process belonged to.
    """

    directory: Path
    before: Path

    def enter(self, cores: float) -> None:
        """Put this process into it, with a quota of so many cores.

        Raises:
            OSError: We may not.
        """
        self.directory.mkdir()
        quota_us = max(1000, int(cores * PERIOD_US))
        if (self.directory / "cpu.max").exists():
            (self.directory / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (self.directory / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.directory / "cpu.cfs_quota_us").write_text(str(quota_us))
        (self.directory / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """Put this process back and remove the group."""
        with contextlib.suppress(OSError):
            (self.before / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def quota_group(name: str) -> QuotaGroup:
    """The group called `name` below the one that limits this process's processors, version 1 or 2. Nothing is made yet.

    Raises:
        UsageError: There is no such group here, or we may not write there.
    """
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        limits = "cpu" in controllers.split(",")
        before = (root / "cpu" if limits else root) / path.lstrip("/")
        offer = before / ("cpu.cfs_quota_us" if controllers else "cgroup.subtree_control")
        if (controllers and not limits) or not offer.exists() or not os.access(before, os.W_OK):
            continue
        if controllers or "cpu" in offer.read_text(encoding="ascii").split():
            return QuotaGroup(before / name, before)
    raise UsageError("the fault cpu-quota needs a control group for processors that we may divide: run it as root")


class Strangers:
    """Programs of somebody else on this host, which end at the latest with this process."""

    def __init__(self) -> None:
        self._targets: list[int] = []

    def start(self, core: int = -1, megabytes: float = 0, busy_s: float = 1, idle_s: float = 0) -> int:
        """Start one; see `housekeeping`. Returns its process id."""
        arguments = (os.getpid(), core, megabytes, busy_s, idle_s)
        starter = start_program(HOUSEKEEPING_PROGRAM, *arguments, stdout=subprocess.PIPE, env={})
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        end_program(starter)
        self._targets.append(os.pidfd_open(pid))
        return pid

    def end(self) -> None:
        """End them all."""
        while self._targets:
            target = self._targets.pop()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(target, signal.SIGTERM)
            os.close(target)


@dataclass
class Burners(Fault):
    """So many processes of somebody else compute on the worker's host."""

    name: ClassVar[str] = "burners"
    processes: float = 4
    strangers: Strangers = field(default_factory=Strangers, init=False, repr=False)

    def start(self, model: Any, place: Place) -> None:
        for _ in range(int(self.processes)):
            self.strangers.start()

    def stop(self) -> None:
        self.strangers.end()


@dataclass
class MemoryHog(Burners):
    """So many processes of somebody else copy `megabytes` each, to and fro, on the worker's host."""

    name: ClassVar[str] = "memory-hog"
    processes: float = 3
    megabytes: float = 400

    def start(self, model: Any, place: Place) -> None:
        for _ in range(int(self.processes)):
            self.strangers.start(megabytes=self.megabytes)


@dataclass
class NoisyHost(Burners):
    """Healthy: a process of somebody else needs a core for `busy_s` every now and then."""

    name: ClassVar[str] = "noisy-host"
    processes: float = 1
    busy_s: float = 0.3
    idle_s: float = 5.0

    def start(self, model: Any, place: Place) -> None:
        for _ in range(int(self.processes)):
            self.strangers.start(busy_s=self.busy_s, idle_s=self.idle_s)


@dataclass
class PinnedCpu(Fault):
    """The worker may only use one core, on which `burners` processes of somebody else compute."""

    name: ClassVar[str] = "pinned-cpu"
    burners: float = 4
    strangers: Strangers = field(default_factory=Strangers, init=False, repr=False)
    before: frozenset[int] = field(default=frozenset(), init=False, repr=False)

    def start(self, model: Any, place: Place) -> None:
        self.before = frozenset(os.sched_getaffinity(0))
        core = max(self.before)
        set_affinity({core})
        for _ in range(int(self.burners)):
            self.strangers.start(core)

    def stop(self) -> None:
        self.strangers.end()
        if self.before:
            set_affinity(self.before)


@dataclass
class OneCore(PinnedCpu):
    """All workers of the host may only use its first core."""

    name: ClassVar[str] = "one-core"
    burners: float = 0

    def start(self, model: Any, place: Place) -> None:
        self.before = frozenset(os.sched_getaffinity(0))
        set_affinity({min(self.before)})


@dataclass
class CpuQuota(Fault):
    """The worker's process may use `cores` of a processor's time: then its control group waits for the next period."""

    name: ClassVar[str] = "cpu-quota"
    cores: float = 0.2
    group: QuotaGroup | None = field(default=None, init=False, repr=False)

    def start(self, model: Any, place: Place) -> None:
        self.group = quota_group(f"quota-{os.getpid()}-{time.monotonic_ns()}")
        self.group.enter(self.cores)

    def stop(self) -> None:
        if self.group is not None:
            self.group.leave()
        self.group = None


@dataclass
class WrongThreads(Fault):
    """The worker's environment asks for `threads` threads for each operator, far more than there are cores."""

    name: ClassVar[str] = "wrong-threads"
    threads: float = 64
    before: int = field(default=0, init=False, repr=False)

    def start(self, model: Any, place: Place) -> None:
        import torch

        self.before = torch.get_num_threads()
        os.environ["OMP_NUM_THREADS"] = str(int(self.threads))
        torch.set_num_threads(int(self.threads))

    def stop(self) -> None:
        import torch

        os.environ["OMP_NUM_THREADS"] = str(self.before)
        torch.set_num_threads(self.before)


def set_affinity(cores: Iterable[int]) -> None:
    """Let all threads of this process use these cores only."""
    wanted = set(cores)
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), wanted)


HOSTS: tuple[type[Fault], ...] = (Burners, MemoryHog, NoisyHost, PinnedCpu, OneCore, CpuQuota, WrongThreads)
