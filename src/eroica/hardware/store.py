"""Samples of one window on one host, read back as NumPy arrays.

Shapes: S samples of a channel, N intervals. Times are CLOCK_MONOTONIC, int64 nanoseconds. A value holds over the
interval that ends at its time and begins at the previous one. Thread clocks move only when the thread leaves its CPU or
at the scheduler's tick, so their use is placed as late as the readings allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from eroica.errors import InputError
from eroica.hardware.writer import (
    CHANNELS_FILE,
    FORMAT,
    MAX_BYTES,
    SAMPLES_FILE,
    VERSION,
    Channel,
    Kind,
    SampleWriter,
)

__all__ = ["Channel", "SampleWriter", "Samples", "Series", "read_samples"]


_RECORD = np.dtype([("channel", "<u4"), ("t_ns", "<i8"), ("value", "<f8")])
_MAX_LINES = 200_000
_LARGEST = 1e18


@dataclass(frozen=True, eq=False)
class Series:
    """The samples of one channel.

    Attributes:
        channel: What it measures.
        start_ns: Start of the first interval.
        t_ns: Ends of the intervals, increasing. int64 [S].
        value: In the channel's unit. float64 [S].
    """

    channel: Channel
    start_ns: int
    t_ns: NDArray[np.int64]
    value: NDArray[np.float64]

    def mean_over(self, start_ns: ArrayLike, end_ns: ArrayLike) -> NDArray[np.float64]:
        """Return the time-weighted mean over each interval, float64 [N]; NaN where the series does not reach."""
        return _mean_over(self._edges, self.value, start_ns, end_ns)

    def share_over(self, value: float, start_ns: ArrayLike, end_ns: ArrayLike) -> NDArray[np.float64]:
        """Return the fraction of each interval with exactly `value`, float64 [N]: `ord("D")` of "state"."""
        return _mean_over(self._edges, (self.value == value).astype(np.float64), start_ns, end_ns)

    @cached_property
    def _edges(self) -> NDArray[np.int64]:
        return np.concatenate(([np.int64(self.start_ns)], self.t_ns))


@dataclass(frozen=True, eq=False)
class Samples:
    """All samples of one host and window, and the sampler's notes on what it left out."""

    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()

    def find(self, name: str, device: str) -> Series | None:
        """Return a channel's series, None if it was not sampled."""
        return self._by_key.get((name, device))

    def named(self, name: str) -> tuple[Series, ...]:
        """Return the series of all devices of a channel."""
        return tuple(item for item in self.series if item.channel.name == name)

    def devices(self, name: str) -> tuple[str, ...]:
        """Return the devices of a channel."""
        return tuple(item.channel.device for item in self.named(name))

    @cached_property
    def _by_key(self) -> dict[tuple[str, str], Series]:
        return {(item.channel.name, item.channel.device): item for item in self.series}


_Duration = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]


class _Line(msgspec.Struct, frozen=True):
    """One line of the list of channels; which fields it has tells its kind."""

    format: str = ""
    version: int = 0
    note: str | None = None
    channel: int = -1
    name: str = ""
    device: str = ""
    unit: str = ""
    capacity: float | None = None
    resolution_ns: _Duration = 0
    kind: Kind = "gauge"
    scale: float = 1.0


class _Declared(NamedTuple):
    channel: Channel
    kind: Kind
    scale: float


def read_samples(directory: Path) -> Samples:
    """Read the store in a directory; a record or line cut short at its end is left out.

    Raises:
        InputError: There is no store, or it is damaged.
    """
    declared, notes = _read_channels(directory / CHANNELS_FILE)
    records = _read_records(directory / SAMPLES_FILE)
    if len(records) and int(records["channel"].max()) >= len(declared):
        raise InputError(f"{directory / SAMPLES_FILE} holds samples of unknown channels; sample the window again")
    order = np.argsort(records["channel"], kind="stable")
    bounds = np.searchsorted(records["channel"][order], np.arange(len(declared) + 1))
    series: dict[tuple[str, str], Series] = {}
    for number, item in enumerate(declared):
        rows = records[order[bounds[number] : bounds[number + 1]]]
        made = _series(item, rows["t_ns"].astype(np.int64), rows["value"].astype(np.float64), directory)
        if made is not None:
            key = (item.channel.name, item.channel.device)
            series[key] = max(series.get(key, made), made, key=lambda one: len(one.t_ns))
    return Samples(series=tuple(series.values()), notes=tuple(notes))


def busy_fraction(t_ns: NDArray[np.int64], busy_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the busy fraction of each interval from totals that a source publishes late, float64 [S].

    A total that grew by more than the time since the last reading was stale before. The excess moves back into the
    earlier intervals, as late as they have room.

    Args:
        t_ns: Times of the readings, increasing. int64 [S + 1].
        busy_ns: Total busy nanoseconds, never decreasing. float64 [S + 1].
    """
    t = (t_ns - t_ns[0]).astype(np.float64)
    used = busy_ns - busy_ns[0]
    true = t + np.maximum.accumulate((used - t)[::-1])[::-1]
    fraction: NDArray[np.float64] = np.clip(np.diff(true) / np.diff(t), 0.0, 1.0)
    return fraction


def _mean_over(
    edges: NDArray[np.int64], value: NDArray[np.float64], start_ns: ArrayLike, end_ns: ArrayLike
) -> NDArray[np.float64]:
    origin = edges[0]
    t = (edges - origin).astype(np.float64)
    total = np.concatenate(([0.0], np.cumsum(value * np.diff(t))))
    start = np.clip((np.asarray(start_ns, dtype=np.int64) - origin).astype(np.float64), 0.0, t[-1])
    end = np.clip((np.asarray(end_ns, dtype=np.int64) - origin).astype(np.float64), 0.0, t[-1])
    covered = end - start
    used = np.interp(end, t, total) - np.interp(start, t, total)
    mean: NDArray[np.float64] = np.divide(used, covered, out=np.full(covered.shape, np.nan), where=covered > 0)
    return mean


def _series(item: _Declared, t_ns: NDArray[np.int64], value: NDArray[np.float64], directory: Path) -> Series | None:
    if not len(t_ns):
        return None
    if t_ns[0] <= 0 or np.any(np.diff(t_ns) < 0) or not np.all(np.abs(value) < _LARGEST):
        raise InputError(f"samples of {item.channel.name} {item.channel.device} in {directory} are damaged")
    last_of_moment = np.append(np.diff(t_ns) > 0, True)
    t_ns, value = t_ns[last_of_moment], value[last_of_moment]
    return _gauge(item, t_ns, value) if item.kind == "gauge" else _rate(item, t_ns, value)


def _gauge(item: _Declared, t_ns: NDArray[np.int64], value: NDArray[np.float64]) -> Series:
    period = int(np.median(np.diff(t_ns))) if len(t_ns) > 1 else max(item.channel.resolution_ns, 1)
    start = max(int(t_ns[0]) - period, 0)
    rate = len(t_ns) * 1e9 / max(int(t_ns[-1]) - start, 1)
    resolution = max(item.channel.resolution_ns, period)
    channel = item.channel._replace(rate_hz=min(rate, 1e9 / resolution), resolution_ns=resolution)
    return Series(channel=channel, start_ns=start, t_ns=t_ns, value=value * item.scale)


def _rate(item: _Declared, t_ns: NDArray[np.int64], total: NDArray[np.float64]) -> Series | None:
    if len(t_ns) < 2:
        return None
    grown = np.maximum(np.diff(total), 0.0)
    if item.kind == "busy":
        value = busy_fraction(t_ns, np.concatenate(([0.0], np.cumsum(grown * item.scale))))
    else:
        value = grown * item.scale / (np.diff(t_ns) * 1e-9)
    rate = float(np.count_nonzero(grown)) * 1e9 / float(t_ns[-1] - t_ns[0])
    return Series(channel=item.channel._replace(rate_hz=rate), start_ns=int(t_ns[0]), t_ns=t_ns[1:], value=value)


def _read_records(path: Path) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        if size > 2 * MAX_BYTES:
            raise InputError(f"{path} has {size} bytes, more than any sampler writes; sample a shorter window")
        return np.fromfile(path, dtype=_RECORD, count=size // _RECORD.itemsize)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _read_channels(path: Path) -> tuple[list[_Declared], list[str]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; is this a directory of `eroica sample`?") from error
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    if len(lines) > _MAX_LINES:
        raise InputError(f"{path} declares more than {_MAX_LINES} channels")
    try:
        decoder = msgspec.json.Decoder(_Line)
        return _parse_lines([decoder.decode(line) for line in lines])
    except (ValueError, IndexError, RecursionError) as error:
        raise InputError(f"{path} is not a list of channels: {error}") from error


def _parse_lines(lines: Sequence[_Line]) -> tuple[list[_Declared], list[str]]:
    if not lines or (lines[0].format, lines[0].version) != (FORMAT, VERSION):
        raise ValueError(f"the first line does not say {FORMAT} {VERSION}")
    declared: list[_Declared] = []
    notes: list[str] = []
    for line in lines[1:]:
        if line.note is not None:
            notes.append(line.note)
        elif line.channel != len(declared):
            raise ValueError(f"channel {line.channel} where {len(declared)} is due")
        else:
            capacity = math.nan if line.capacity is None else line.capacity
            channel = Channel(line.name, line.device, line.unit, capacity, resolution_ns=line.resolution_ns)
            declared.append(_Declared(channel, line.kind, line.scale))
    return declared, notes
