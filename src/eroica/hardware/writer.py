"""The writing half of the store. Standard library only: the sampler must start fast.

    channels.jsonl   first {"format": "eroica-samples", "version": 1}, then a line per channel or note
    samples.bin      records of 20 bytes, little-endian: channel u32, CLOCK_MONOTONIC i64 (ns), value f64

Both only grow, and a channel's line comes before its first record: the store of a killed sampler can be read.
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
    """A quantity of a device.

    Attributes:
        name: What is measured ("cpu", "run_queue", "state", "net", ...).
        device: "<pid>/<tid>", "<pid>", "cpu0", "eth0/tx", "gpu0/<uuid>".
        unit: "fraction", "B/s", "s", "code", ...; a fraction is of `capacity` where that is known.
        capacity: What 1.0 stands for (cores, bytes per second); NaN if unknown.
        rate_hz: Values per second: changes of a counter, readings of a gauge. 0 until read back.
        resolution_ns: The source's own renewal or the reading period, whichever is longer.
    """

    name: str
    device: str
    unit: str
    capacity: float = math.nan
    rate_hz: float = 0.0
    resolution_ns: int = 0


class SampleWriter:
    """Appends samples to a store, replacing an older one; flushed samples survive a kill.

    Samples beyond `max_bytes` are dropped and counted in a note.
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
        """Announce a channel and return its number.

        Args:
            channel: The channel.
            kind: "gauge": values are readings. "counter": totals, of which the reader makes rates per second. "busy":
                totals of busy nanoseconds, of which the reader makes fractions.
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
        """Add a sample; times of a channel must not go back."""
        self._buffer += RECORD.pack(channel, t_ns, value)

    def note(self, text: str) -> None:
        """Add a note for the reader, once."""
        if text not in self._notes:
            self._notes.add(text)
            self._line({"note": text})

    def flush(self) -> None:
        """Write the buffer."""
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
    """A cumulative counter, stored where it changes and at the last moment before."""

    __slots__ = ("_channel", "_seen_ns", "_value", "_writer", "_written_ns")

    def __init__(self, writer: SampleWriter, channel: int) -> None:
        self._writer = writer
        self._channel = channel
        self._value = -1.0
        self._seen_ns = -1
        self._written_ns = -1

    def put(self, t_ns: int, value: float) -> None:
        """Take in the value at a time."""
        if value != self._value:
            self.mark()
            self._value = value
            self._written_ns = t_ns
            self._writer.add(self._channel, t_ns, value)
        self._seen_ns = t_ns

    def seen(self, t_ns: int) -> None:
        """Take in that the value has not changed until then."""
        self._seen_ns = t_ns

    def mark(self) -> None:
        """Write how long the value has held."""
        if self._seen_ns > self._written_ns:
            self._written_ns = self._seen_ns
            self._writer.add(self._channel, self._seen_ns, self._value)


def _open_new(path: Path) -> int:
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
