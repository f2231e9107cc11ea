"""How many cores this process may use: affinity, and the quota of its cgroup (a container on a large host)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

from eroica.hardware.limits import parse_membership, parse_mounts, stat_files


def cores() -> int:
    """Cores that may be used at the same time, at least one."""
    allowed = len(os.sched_getaffinity(0))
    try:
        membership = parse_membership(Path("/proc/self/cgroup").read_text(encoding="utf-8"))
        mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        quotas = [parse_quota(file.read_text()) for file in stat_files(mounts, membership, "cpu.max")]
    except OSError:
        return allowed
    return max(1, min([allowed, *_whole(quotas)]))


def parse_quota(cpu_max: str) -> float | None:
    """Cores that `cpu.max` grants ("200000 100000" is two), None without a limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None
    return int(quota) / int(period)


def _whole(quotas: Iterable[float | None]) -> list[int]:
    return [math.ceil(quota) for quota in quotas if quota is not None]
