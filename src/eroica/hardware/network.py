"""Network interfaces and RDMA ports, as fractions of the speed they state."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from eroica.hardware.writer import Channel, SampleWriter

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


def parse_speed(speed: str) -> float:
    """Return bytes per second from `/sys/class/net/<interface>/speed` (Mbit/s); NaN if unknown (-1)."""
    try:
        megabits = int(speed)
    except ValueError:
        return math.nan
    return megabits * 125_000.0 if megabits > 0 else math.nan


def parse_rdma_rate(rate: str) -> float:
    """Return bytes per second from a port's `rate` file ("100 Gb/sec (4X EDR)"); NaN if unknown."""
    number, _, unit = rate.partition(" ")
    if not unit.startswith("Gb/sec"):
        return math.nan
    try:
        return float(number) * 125_000_000.0
    except ValueError:
        return math.nan


def interface_speed(name: str, root: Path = Path("/sys/class/net")) -> float:
    """Return the stated speed, bytes per second; NaN for loopback and most virtual interfaces."""
    try:
        return parse_speed((root / name / "speed").read_text(encoding="ascii"))
    except OSError:
        return math.nan


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
        capacity = interface_speed(name, self._speeds)
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
            self._add_port(port)
        if not self._counters:
            raise FileNotFoundError(2, "no RDMA port")

    def _add_port(self, port: Path) -> None:
        device = f"{port.parent.parent.name}/{port.name}"
        try:
            capacity = parse_rdma_rate((port / "rate").read_text(encoding="ascii"))
        except OSError:
            capacity = math.nan
        for way, file in (("rx", "port_rcv_data"), ("tx", "port_xmit_data")):
            channel, scale = _traffic_channel("rdma", f"{device}/{way}", capacity, self.period_ns)
            self._add_counter(port / "counters" / file, channel, scale * _WORD)

    def _add_counter(self, path: Path, channel: Channel, scale: float) -> None:
        if path.is_file() and os.access(path, os.R_OK):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._counters.append((descriptor, self._writer.declare(channel, "counter", scale)))

    def read(self) -> None:
        """Sample every counter."""
        for descriptor, number in self._counters:
            self._writer.add(number, time.monotonic_ns(), int(os.pread(descriptor, 64, 0)))

    def close(self) -> None:
        """Give the descriptors back."""
        while self._counters:
            os.close(self._counters.pop()[0])
