"""What the host's processes lack, as the kernel counts it (pressure stall information), and how much memory is left."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from eroica.hardware.writer import Channel, SampleWriter, Track

_KINDS = ("cpu", "memory", "io")


def parse_pressure(text: bytes) -> int:
    """Microseconds in which some task was held back so far, from `/proc/pressure/<kind>`.

    Raises:
        ValueError: There is no such line.
    """
    for line in text.splitlines():
        if line.startswith(b"some "):
            _, found, total = line.partition(b"total=")
            if found:
                return int(total)
    raise ValueError(f"no pressure in {text[:40]!r}")


def parse_memory(meminfo: bytes) -> tuple[int, int]:
    """(bytes of the host, bytes that programs can still get without swapping), from `/proc/meminfo`.

    Raises:
        ValueError: One of them is missing.
    """
    found = {name: value.split() for name, _, value in (line.partition(b":") for line in meminfo.splitlines())}
    if not found.get(b"MemTotal") or not found.get(b"MemAvailable"):
        raise ValueError("no memory in /proc/meminfo")
    return int(found[b"MemTotal"][0]) * 1024, int(found[b"MemAvailable"][0]) * 1024


class PressureProbe:
    """What the host lacks.

    Channels "pressure" (fraction of time in which some task waits for it), device "cpu", "memory" or "io", and
    "memory_available" (fraction of the host's memory), device "host".

    Args:
        writer: Where to.
        root: /proc.

    Raises:
        OSError: /proc/meminfo cannot be read.
    """

    period_ns = 500_000_000

    def __init__(self, writer: SampleWriter, root: Path = Path("/proc")) -> None:
        self._writer = writer
        self._descriptors: list[int] = []
        self._tracks: list[tuple[int, Track]] = []
        for kind in _KINDS:
            descriptor = self._open(root / "pressure" / kind)
            if descriptor is not None:
                channel = Channel("pressure", kind, "fraction", 1.0, resolution_ns=self.period_ns)
                self._tracks.append((descriptor, Track(writer, writer.declare(channel, "counter", 1e-6))))
        self._memory = os.open(root / "meminfo", os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors.append(self._memory)
        total, _ = parse_memory(os.pread(self._memory, 8192, 0))
        free = Channel("memory_available", "host", "fraction", float(total), resolution_ns=self.period_ns)
        self._free = writer.declare(free)

    def _open(self, path: Path) -> int | None:
        """A file that answers; None on kernels that do not count this, or were told not to."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            os.pread(descriptor, 1, 0)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            return None
        self._descriptors.append(descriptor)
        return descriptor

    def read(self) -> None:
        """Sample."""
        now_ns = time.monotonic_ns()
        for descriptor, track in self._tracks:
            track.put(now_ns, parse_pressure(os.pread(descriptor, 512, 0)))
        total, free = parse_memory(os.pread(self._memory, 8192, 0))
        self._writer.add(self._free, now_ns, free / max(total, 1))

    def close(self) -> None:
        """Write down the last moment and give the descriptors back."""
        for _, track in self._tracks:
            track.mark()
        while self._descriptors:
            os.close(self._descriptors.pop())
