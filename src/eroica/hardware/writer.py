"""The store's writing half. Standard library only: the sampler starts at every window and must start fast.

    channels.jsonl   first {"format": "eroica-samples", "version": 1}, then a line per channel, note or achieved period
    samples.bin      records of 20 bytes, little-endian: channel u32, CLOCK_MONOTONIC i64 (ns), value f64

Both only grow. A channel's line is on its way before its first record, so whatever a kill leaves behind can be read.
"""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any, Literal, NamedTuple

FORMAT = "eroica-samples"
VERSION = 1
CHANNELS_FILE = "channels.jsonl"
SAMPLES_FILE = "samples.bin"
RECORD = struct.Struct("<Iqd")
MAX_BYTES = 512 << 20

Kind = Literal["gauge", "counter", "busy"]


class Channel(NamedTuple):
    """One measured quantity of one device.

    Attributes:
        name: What is measured ("cpu", "run_queue", "state", "net", ...); `docs/how-it-works.md` lists them.
        device: Of what: "<pid>/<tid>", "<pid>", "cpu0", "eth0/tx", "gpu0/<uuid>".
        unit: "fraction", "B/s", "s", "code", ...; a fraction is of `capacity` where that is known.
        capacity: What 1.0 stands for (cores, bytes per second); NaN where nobody states one.
        rate_hz: Values per second really achieved: changes of a counter, readings of a gauge. 0 until read back.
        resolution_ns: Details shorter than this are not in the data: the source's own renewal or the reading period,
            whichever is longer.
    """

    name: str
    device: str
    unit: str
    capacity: float = math.nan
    rate_hz: float = 0.0
    resolution_ns: int = 0


class SampleWriter:
    """Appends samples to a directory; what is flushed survives a kill.

    Args:
        directory: Where; created if missing. An older store in it is replaced.
        max_bytes: Samples beyond this many bytes are dropped and counted in a note.
    """

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._samples = _open_new(directory / SAMPLES_FILE)
        self._channels = _open_new(directory / CHANNELS_FILE)
        self._buffer = bytearray()
        self._left = max_bytes
        self._dropped = 0
        self._next = 0
        self._notes: set[str] = set()
        self._line({"format": FORMAT, "version": VERSION})

    def declare(self, channel: Channel, kind: Kind = "gauge", scale: float = 1.0) -> int:
        """Announce a channel and get its number.

        Args:
            channel: What it is; its `rate_hz` is ignored.
            kind: "gauge": values are readings. "counter": values are totals; the reader makes rates per second of
                them. "busy": totals of busy nanoseconds; the reader makes fractions of at most 1.
            scale: Factor from the stored numbers (or their rate) to the channel's unit.
        """
        number = self._next
        self._next += 1
        capacity = None if math.isnan(channel.capacity) else channel.capacity
        self._line(
            {
                "channel": number,
                "name": channel.name,
                "device": channel.device,
                "unit": channel.unit,
                "capacity": capacity,
                "resolution_ns": channel.resolution_ns,
                "kind": kind,
                "scale": scale,
            }
        )
        return number

    def add(self, channel: int, t_ns: int, value: float) -> None:
        """One sample; times of a channel must not go back."""
        self._buffer += RECORD.pack(channel, t_ns, value)

    def note(self, text: str) -> None:
        """Something the reader must know (what is left out and why); the same text is written once."""
        if text not in self._notes:
            self._notes.add(text)
            self._line({"note": text})

    def achieved(self, channels: list[int], period_ns: int) -> None:
        """The mean reading period these channels really got; widens their resolution."""
        self._line({"channels": channels, "period_ns": period_ns})

    def flush(self) -> None:
        """Hand everything buffered to the kernel."""
        data = self._buffer
        if not data:
            return
        self._buffer = bytearray()
        whole = min(len(data), self._left) // RECORD.size * RECORD.size
        self._dropped += (len(data) - whole) // RECORD.size
        self._left -= whole
        _write_all(self._samples, memoryview(data)[:whole])

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._dropped:
            self.note(f"{self._dropped} samples dropped: the store's size limit was reached")
        os.close(self._samples)
        os.close(self._channels)

    def _line(self, content: dict[str, Any]) -> None:
        _write_all(self._channels, memoryview(json.dumps(content, separators=(",", ":")).encode() + b"\n"))


class Track:
    """One cumulative counter, stored only where it changes, with the last moment it had not yet changed."""

    __slots__ = ("_channel", "_seen_ns", "_value", "_writer", "_written_ns")

    def __init__(self, writer: SampleWriter, channel: int) -> None:
        self._writer = writer
        self._channel = channel
        self._value = -1.0
        self._seen_ns = -1
        self._written_ns = -1

    def put(self, t_ns: int, value: float) -> None:
        """The counter read `value` at `t_ns`."""
        if value != self._value:
            self.mark()
            self._value = value
            self._written_ns = t_ns
            self._writer.add(self._channel, t_ns, value)
        self._seen_ns = t_ns

    def seen(self, t_ns: int) -> None:
        """The counter is known not to have changed until `t_ns`."""
        self._seen_ns = t_ns

    def mark(self) -> None:
        """Write down how long the present value has held."""
        if self._seen_ns > self._written_ns:
            self._written_ns = self._seen_ns
            self._writer.add(self._channel, self._seen_ns, self._value)


def _open_new(path: Path) -> int:
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
