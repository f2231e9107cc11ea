"""Channels of the host: CPU time that quotas withhold, and traffic of network interfaces and RDMA ports."""

from __future__ import annotations

import math
import os
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


def parse_quota(cpu_max: str) -> float | None:
    """Return the cores that `cpu.max` grants ("200000 100000" is two), None without a limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None
    return int(quota) / int(period)


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
        self._time.put(now_ns, sum(parse_throttled(file.read_bytes()) or 0 for file in self._files))

    def close(self) -> None:
        """Write down the last moment."""
        self._time.mark()


# --- interfaces ---


#: InfiniBand counts `port_*_data` in words of four bytes.
_WORD = 4


def parse_interfaces(net_dev: bytes) -> dict[str, tuple[int, int]]:
    """Return bytes received and sent of each interface, from `/proc/net/dev`."""
    interfaces: dict[str, tuple[int, int]] = {}
    for line in net_dev.splitlines():
        name, colon, rest = line.rpartition(b":")
        fields = rest.split()
        if colon and len(fields) >= 9:
            interfaces[name.strip().decode(errors="replace")] = (int(fields[0]), int(fields[8]))
    return interfaces


def read_capacity(path: Path) -> float:
    """Return bytes per second from the file that tells them; NaN if unknown, as of most virtual interfaces.

    Args:
        path: An interface's `speed` (Mbit/s; -1 is unknown) or an RDMA port's `rate` ("100 Gb/sec (4X EDR)").
    """
    try:
        number, _, unit = path.read_text(encoding="ascii").strip().partition(" ")
        per_s = float(number) * (125e6 if unit.startswith("Gb/sec") else 125e3)
    except (OSError, ValueError):
        return math.nan
    return per_s if per_s > 0 else math.nan


def _traffic_channel(name: str, device: str, capacity: float, period_ns: int) -> tuple[Channel, float]:
    """Return the channel and the factor from bytes to its unit."""
    if math.isnan(capacity):
        return Channel(name, device, "B/s", resolution_ns=period_ns), 1.0
    return Channel(name, device, "fraction", capacity, resolution_ns=period_ns), 1.0 / capacity


class InterfaceProbe:
    """Traffic of every interface that ever carried a byte, channel "net", devices "<interface>/rx" and "/tx"."""

    period_ns = 20_000_000

    def __init__(
        self, writer: SampleWriter, path: Path = Path("/proc/net/dev"), speeds: Path = Path("/sys/class/net")
    ) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._writer = writer
        self._speeds = speeds
        self._numbers = {name: self._declare(name) for name, totals in self._totals().items() if any(totals)}

    def _declare(self, name: str) -> tuple[int, int]:
        capacity = read_capacity(self._speeds / name / "speed")
        made = [_traffic_channel("net", f"{name}/{way}", capacity, self.period_ns) for way in ("rx", "tx")]
        receive, send = (self._writer.declare(channel, "counter", scale) for channel, scale in made)
        return receive, send

    def _totals(self) -> dict[str, tuple[int, int]]:
        return parse_interfaces(os.pread(self._descriptor, 1 << 16, 0))

    def read(self) -> None:
        """Sample every interface."""
        now_ns = time.monotonic_ns()
        for name, totals in self._totals().items():
            for number, total in zip(self._numbers.get(name, ()), totals, strict=False):
                self._writer.add(number, now_ns, total)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


class RdmaProbe:
    """Traffic of every RDMA port, channel "rdma", devices "<adapter>/<port>/rx" and "/tx".

    Raises:
        FileNotFoundError: There is no RDMA port.
    """

    period_ns = 20_000_000

    def __init__(self, writer: SampleWriter, root: Path = Path("/sys/class/infiniband")) -> None:
        self._writer = writer
        self._counters: list[tuple[int, int]] = []
        for port in sorted(root.glob("*/ports/*")):
            device, capacity = f"{port.parent.parent.name}/{port.name}", read_capacity(port / "rate")
            for way, file in (("rx", "port_rcv_data"), ("tx", "port_xmit_data")):
                path = port / "counters" / file
                if path.is_file() and os.access(path, os.R_OK):
                    channel, scale = _traffic_channel("rdma", f"{device}/{way}", capacity, self.period_ns)
                    number = writer.declare(channel, "counter", scale * _WORD)
                    self._counters.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), number))
        if not self._counters:
            raise FileNotFoundError(2, "no RDMA port")

    def read(self) -> None:
        """Sample every counter."""
        for descriptor, number in self._counters:
            self._writer.add(number, time.monotonic_ns(), int(os.pread(descriptor, 64, 0)))

    def close(self) -> None:
        """Give the descriptors back."""
        while self._counters:
            os.close(self._counters.pop()[0])
