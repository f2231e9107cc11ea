"""CPU time withheld by a cgroup's quota, from `cpu.stat` of version 1 or 2."""

from __future__ import annotations

import os
import time
from pathlib import Path

from eroica.hardware.writer import Channel, SampleWriter, Track


def parse_mounts(mountinfo: str, controller: str = "cpu") -> tuple[list[Path], list[Path]]:
    """(where version 2 is mounted, where version 1's controller is mounted), from `/proc/self/mountinfo`."""
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
    """(path in version 2, path under version 1's controller) from `/proc/<pid>/cgroup`; "" where there is none."""
    unified = controlled = ""
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            unified = path
        elif controller in controllers.split(","):
            controlled = path
    return unified, controlled


def parse_throttled(cpu_stat: bytes) -> tuple[int, int] | None:
    """(periods in which the group was throttled, nanoseconds it was), totals; None where it cannot have a quota."""
    values = dict(line.split()[:2] for line in cpu_stat.splitlines() if b" " in line)
    if b"nr_throttled" not in values:
        return None
    if b"throttled_usec" in values:
        return int(values[b"nr_throttled"]), int(values[b"throttled_usec"]) * 1000
    return int(values[b"nr_throttled"]), int(values.get(b"throttled_time", b"0"))


def stat_files(
    mounts: tuple[list[Path], list[Path]], membership: tuple[str, str], name: str = "cpu.stat"
) -> list[Path]:
    """`cpu.stat` of the process's group and of all groups above it, innermost first: a quota in any holds it back."""
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
    """What quotas withhold from one process.

    Channels: "throttled" (seconds per second, summed over CPUs, so it can exceed 1) and "throttled_periods" (per
    second), device "<pid>".

    Args:
        writer: Where to.
        pid: The process.
        files: Its groups' `cpu.stat`; None finds them.

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
        self._descriptors = [os.open(file, os.O_RDONLY | os.O_CLOEXEC) for file in files]
        device, resolution = str(pid), self.period_ns
        time_channel = Channel("throttled", device, "s/s", resolution_ns=resolution)
        count_channel = Channel("throttled_periods", device, "1/s", resolution_ns=resolution)
        self._time = Track(writer, writer.declare(time_channel, "counter", 1e-9))
        self._count = Track(writer, writer.declare(count_channel, "counter"))

    def read(self) -> None:
        """Sample."""
        now_ns = time.monotonic_ns()
        periods = throttled = 0
        for descriptor in self._descriptors:
            values = parse_throttled(os.pread(descriptor, 4096, 0))
            if values is not None:
                periods, throttled = periods + values[0], throttled + values[1]
        self._count.put(now_ns, periods)
        self._time.put(now_ns, throttled)

    def close(self) -> None:
        """Write down the last moment and give the descriptors back."""
        self._time.mark()
        self._count.mark()
        while self._descriptors:
            os.close(self._descriptors.pop())
