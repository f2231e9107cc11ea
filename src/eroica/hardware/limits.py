"""Limits on CPU: cgroup quotas of versions 1 and 2."""

from __future__ import annotations

import time
from pathlib import Path

from eroica.hardware.writer import Channel, SampleWriter, Track


def parse_mounts(mountinfo: str, controller: str = "cpu") -> tuple[list[Path], list[Path]]:
    """Return the mounts of version 2 and of version 1's controller, from `/proc/self/mountinfo`."""
    unified: list[Path] = []
    controlled: list[Path] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        fields = before.split(" ")
        if len(fields) < 5:
            continue
        if kind == "cgroup2":
            unified.append(Path(fields[4]))
        elif kind == "cgroup" and controller in options.rpartition(" ")[2].split(","):
            controlled.append(Path(fields[4]))
    return unified, controlled


def parse_membership(cgroup: str, controller: str = "cpu") -> tuple[str, str]:
    """Return the paths in version 2 and under version 1's controller, from `/proc/<pid>/cgroup`; "" for none."""
    unified = controlled = ""
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            unified = path
        elif controller in controllers.split(","):
            controlled = path
    return unified, controlled


def parse_throttled(cpu_stat: bytes) -> int | None:
    """Return for how many nanoseconds the group was throttled so far; None where it cannot have a quota."""
    values = dict(line.split()[:2] for line in cpu_stat.splitlines() if b" " in line)
    if b"nr_throttled" not in values:
        return None
    if b"throttled_usec" in values:
        return int(values[b"throttled_usec"]) * 1000
    return int(values.get(b"throttled_time", b"0"))


def stat_files(
    mounts: tuple[list[Path], list[Path]], membership: tuple[str, str], name: str = "cpu.stat"
) -> list[Path]:
    """Return `cpu.stat` of the process's group and of all groups above it: a quota in any holds it back."""
    files: list[Path] = []
    for roots, path in zip(mounts, membership, strict=True):
        if not path:
            continue
        for root in roots:
            group = root / path.lstrip("/").replace("../", "")
            chain = (group, *group.parents)
            files += [place / name for place in chain if place.is_relative_to(root)]
    return [file for file in files if file.is_file()]


class ThrottleProbe:
    """CPU time that quotas withhold from one process.

    Channel "throttled" (seconds per second, summed over CPUs, so it can exceed 1), device "<pid>".

    Args:
        writer: Store to write to.
        pid: The process.
        files: `cpu.stat` of its groups; None finds them.

    Raises:
        OSError: The process is gone or its groups cannot be read; also where no group can have a quota.
    """

    period_ns = 100_000_000

    def __init__(self, writer: SampleWriter, pid: int, files: list[Path] | None = None) -> None:
        if files is None:
            membership = parse_membership(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"))
            files = stat_files(parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8")), membership)
        files = [file for file in files if parse_throttled(file.read_bytes()) is not None]
        if not files:
            raise FileNotFoundError(2, f"process {pid} is in no group that could have a CPU quota")
        self._files = files
        channel = Channel("throttled", str(pid), "s/s", resolution_ns=self.period_ns)
        self._time = Track(writer, writer.declare(channel, "counter", 1e-9))

    def read(self) -> None:
        """Sample."""
        now_ns = time.monotonic_ns()
        totals = (parse_throttled(file.read_bytes()) for file in self._files)
        self._time.put(now_ns, sum(total for total in totals if total is not None))

    def close(self) -> None:
        """Write down the last moment."""
        self._time.mark()
