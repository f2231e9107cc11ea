"""CPU quotas of control groups, version 1 and 2: who may, puts this process into a group of its own with a quota."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from eroica.errors import UsageError

ROOT = Path("/sys/fs/cgroup")
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


def quota_group(name: str, root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> QuotaGroup:
    """The group called `name` below the one that limits this process's processors. Nothing is made yet.

    Raises:
        UsageError: There is no such group here, or we may not write there.
    """
    for line in own.read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        before = root / "cpu" / path.lstrip("/") if "cpu" in controllers.split(",") else root / path.lstrip("/")
        quota = "cpu.cfs_quota_us" if controllers else "cgroup.subtree_control"
        if ("cpu" in controllers.split(",") or not controllers) and _offers_quota(before / quota):
            return QuotaGroup(before / name, before)
    raise UsageError("the fault cpu-quota needs a control group for processors that we may divide: run it as root")


def _offers_quota(file: Path) -> bool:
    if not file.exists() or not os.access(file.parent, os.W_OK):
        return False
    return file.name != "cgroup.subtree_control" or "cpu" in file.read_text(encoding="ascii").split()
