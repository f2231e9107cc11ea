"""A worker's pattern as a parcel: what it has in common with others as parts by themselves, and its own numbers.

Functions with their call stacks, process groups, the setup and the names of channels are nearly the same on all workers
and in all windows of a job. Each is a part; on the way to a collector that knows it, only its number travels
(`eroica.agent.numbering`, `eroica.collector.numbering`). Measured values travel in steps, with which the verdicts on
all kept windows of real jobs are the same (`python benchmarks/wire.py --judge`):

    seconds of a function           1 %, below 50 us even steps of 0.5 us; longest execution 4 %
    critical time in one iteration  1.6 %, below a twentieth of the mean iteration even steps of 0.08 % of it
    executions of collectives       1 %, below a twentieth of it 0.05 %; their ends to a 2048th of it
    utilizations                    1 % of the whole
    channels and facts of the host  11 significant bits

Counts, iterations, sizes and all else are kept as they are. On disk a parcel carries its parts itself.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.rows import COUNTS, NUMBERS, RowTable
from eroica.wire.patterns import groups_of, key_of, packed_group
from eroica.wire.steps import Whole, differences, from_steps, pack_whole, to_steps, unpack_whole

ID_BYTES = 16
#: Bytes of an unpacked parcel, its parts, and numbers that it may hold: few bytes must not become gigabytes.
_MOST_BYTES, _MOST_PARTS, _MOST_VALUES = 4_000_000, 20_000, 500_000
#: Nothing within a window is shorter than this, seconds.
_SHORTEST_S = 5e-5
#: Steps in which a value grows by the factor e.
_ROW, _LONGEST, _IN_ITERATION, _EXECUTION, _ITERATION, _ERROR = 100, 25, 64, 100, 1000, 32
#: Steps of a utilization from 0 to 1, of the end of an execution within the mean iteration, and of a second.
_UTILIZATION, _END, _SECOND = 100.0, 2048, 1e4
#: Begin of zlib's form of bytes that are not compressed: its header, one last block, its length, and that inverted.
_STORED_HEAD, _MOST_STORED = struct.Struct("<3sHH"), 0xFFFF
#: Bits that facts lose, and half of what they are worth.
_DROPPED_BITS, _HALF = 13, 1 << 12
#: Seconds of a pattern that are kept to a ten-thousandth.
_AMOUNTS = ("idle_s", "dropped_critical_s", "stall_s", "summarize_s")
#: Columns after those of rows and collectives: how many iterations, their durations, the same of waits, facts, amounts.
_LAST_COLUMNS = 6
#: Series of collectives as columns, with the type they have in a pattern.
_EXACT: tuple[tuple[str, DTypeLike], ...] = (
    ("sequence", "<i8"), ("iteration", "<i4"), ("elements", "<i8"), ("peers", "<i4"),
)  # fmt: skip
_SERIES = ("duration_us", "critical_us", "end_us", *(name for name, _ in _EXACT))


class Parcel(NamedTuple):
    """A pattern whose shared parts stand beside it.

    Attributes:
        parts: Setup, names of channels and host facts, process groups, functions of all rows; MessagePack each.
        own: All else, compressed.
    """

    parts: tuple[bytes, ...]
    own: bytes


class _Own(msgspec.Struct, frozen=True, array_like=True):
    """The content of `Parcel.own`.

    Attributes:
        head: The pattern without what lies in parts and columns.
        groups: Its process groups.
        resources: Names of resources.
        lengths: Values in each series of a collective; 0 where the record in `head` is whole.
        columns: Whole numbers (`eroica.wire.steps`) in the order in which `_Columns` takes them.
    """

    head: WorkerPattern
    groups: int
    resources: tuple[str, ...]
    lengths: tuple[int, ...]
    columns: tuple[bytes, ...]


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """A parcel on disk; `parts` is compressed MessagePack."""

    parts: bytes
    own: bytes


def _dictionary() -> bytes:
    """Names of fields as they stand in MessagePack, for zlib to refer to; the order is part of the form."""
    names = (
        "setup process_groups functions local remote sent_bytes received_bytes busy_s queued_bytes retransmits rtt_s "
        "least_rtt_s name call stack waited_s lost_s per_iteration_us cpu_cores run_queue_wait memory_bytes "
        "device_bytes device_utilization age_s sequence none order barrier broadcast all_gather reduce_scatter "
        "all_reduce group kind paired_by executions dropped peers elements iteration duration_us critical_us end_us "
        "device_uuid global_rank local_rank world_size host pid device worker window_id first_iteration last_iteration "
        "duration_s iteration_us wait_us collectives idle_s dropped_critical_s samples_used samples_dropped "
        "has_accelerator channels host_facts links syncs neighbors stall_s summarize_s raw_bytes timeline found_by "
        "has_trace notes"
    )
    phrases = b"sampling slowed down times to stay within its CPU budget", b"cpu", b"nic"
    return b"".join((*phrases, *(bytes([0xA0 + len(name)]) + name.encode() for name in names.split())))


_DICTIONARY = _dictionary()
_OWN, _STORED = msgspec.msgpack.Decoder(_Own), msgspec.msgpack.Decoder(_Stored)
_PARTS = msgspec.msgpack.Decoder(tuple[bytes, ...])
_SETUP = msgspec.msgpack.Decoder(dict[str, str])
_NAMES = msgspec.msgpack.Decoder(tuple[tuple[str, ...], tuple[str, ...]])


class _Scale(NamedTuple):
    """Units of a window's steps.

    Attributes:
        window_s: The window, seconds.
        iteration_us: Its mean iteration, microseconds; above zero.
    """

    window_s: float
    iteration_us: float

    @classmethod
    def of(cls, head: WorkerPattern) -> _Scale:
        """Units of a pattern.

        Raises:
            ValueError: It lasts no time that could be measured.
        """
        if not 0.0 <= head.duration_s <= 1e9:
            raise ValueError(f"a window of {head.duration_s} s")
        iterations = max(1, head.last_iteration - head.first_iteration)
        return cls(head.duration_s, max(head.duration_s * 1e6 / iterations, 1.0))

    @property
    def floor_us(self) -> float:
        """Of times within one iteration."""
        return 0.05 * self.iteration_us


def to_parcel(pattern: WorkerPattern) -> Parcel:
    """A pattern as a parcel; its numbers come to stand on their steps.

    Raises:
        ValueError: A number in it is none, or a series is damaged (zlib's errors beside).
    """
    scale, table, columns = _Scale.of(pattern), RowTable.of(pattern.functions), list[Whole]()
    _pack_rows(table, scale, columns)
    records = [_pack_record(record, scale, columns) for record in pattern.collectives]
    for series, per_e in ((pattern.iteration_us, _ITERATION), (pattern.wait_us, _ROW)):
        steps = _steps(_values(series, "<f4"), scale.floor_us, per_e)
        columns += [np.asarray([steps.size]), steps]
    facts = np.asarray([*pattern.host_facts.values()], dtype="<f4")
    columns.append(facts.view("<i4").astype(np.int64) + _HALF >> _DROPPED_BITS)
    columns.append(np.rint(np.asarray([getattr(pattern, name) for name in _AMOUNTS]) * _SECOND).astype(np.int64))
    head = msgspec.structs.replace(
        pattern, functions=(), process_groups=(), setup={}, host_facts={}, iteration_us=b"", wait_us=b"",
        collectives=tuple(record for record, _ in records), **dict.fromkeys(_AMOUNTS, 0.0),
    )  # fmt: skip
    encode = msgspec.msgpack.encode
    own = _Own(
        head,
        len(pattern.process_groups),
        table.resources,
        tuple(n for _, n in records),
        tuple(map(pack_whole, columns)),
    )
    packer = zlib.compressobj(9, zdict=_DICTIONARY)
    shared = (pattern.setup, ((), tuple(pattern.host_facts)))
    parts = (*shared, *map(packed_group, pattern.process_groups), *table.keys)
    return Parcel(tuple(map(encode, parts)), packer.compress(encode(own)) + packer.flush())


def from_parcel(parcel: Parcel) -> WorkerPattern:
    """The pattern in a parcel.

    Raises:
        ValueError: There is none in it (msgspec's errors are ValueErrors), or it would be too large (zlib's errors
            beside).
    """
    own = _opened(parcel)
    scale, columns = _Scale.of(own.head), _Columns(own.columns)
    channels, facts = _NAMES.decode(parcel.parts[1])
    table = _rows(parcel.parts[2 + own.groups :], own.resources, scale, columns)
    records = [
        _record(record, length, scale, columns)
        for record, length in zip(own.head.collectives, own.lengths, strict=True)
    ]
    iteration_us, wait_us = (
        from_steps(columns.take(int(columns.take(1)[0])), scale.floor_us, per_e) for per_e in (_ITERATION, _ROW)
    )
    values = (columns.take(len(channels) + len(facts)) << _DROPPED_BITS).astype("<i4").view("<f4").tolist()
    amounts = dict(zip(_AMOUNTS, (columns.take(len(_AMOUNTS)) / _SECOND).tolist(), strict=True))
    return msgspec.structs.replace(
        own.head,
        functions=table,
        collectives=tuple(records),
        process_groups=groups_of(parcel.parts[2 : 2 + own.groups]),
        setup=_SETUP.decode(parcel.parts[0]),
        host_facts=dict(zip(facts, values[len(channels) :], strict=True)),
        iteration_us=_series(iteration_us, "<f4"),
        wait_us=_series(wait_us, "<f4"),
        **amounts,
    )


def head_of(parcel: Parcel) -> WorkerPattern:
    """The head of a pattern: whose it is, of which window, and how long its iterations took, without rows and all else.

    Far less work than `from_parcel`; what it leaves aside may be damaged.

    Raises:
        ValueError: As for `from_parcel`.
    """
    own = _opened(parcel)
    if len(own.columns) < _LAST_COLUMNS:
        raise ValueError("its columns are not all there")
    scale, columns = _Scale.of(own.head), _Columns(own.columns[-_LAST_COLUMNS:])
    iteration_us = from_steps(columns.take(int(columns.take(1)[0])), scale.floor_us, _ITERATION)
    return without_rows(own.head, _series(iteration_us, "<f4"))


def without_rows(pattern: WorkerPattern, iteration_us: bytes) -> WorkerPattern:
    """What `head_of` leaves of a pattern.

    Args:
        pattern: Any.
        iteration_us: Its series of this name.
    """
    return WorkerPattern(
        worker=pattern.worker,
        window_id=pattern.window_id,
        first_iteration=pattern.first_iteration,
        last_iteration=pattern.last_iteration,
        duration_s=pattern.duration_s,
        has_trace=pattern.has_trace,
        iteration_us=iteration_us,
        wait_us=b"",
        functions=(),
    )


def _opened(parcel: Parcel) -> _Own:
    own = _OWN.decode(_unpacked(parcel.own, zlib.decompressobj(zdict=_DICTIONARY)))
    if not 0 <= own.groups <= len(parcel.parts) - 2 <= _MOST_PARTS:
        raise ValueError(f"{len(parcel.parts)} parts are no pattern's")
    return own


def to_file(parcel: Parcel) -> bytes:
    """A parcel with its parts, for the disk."""
    return msgspec.msgpack.encode(_Stored(pack_parts(parcel.parts, 1), parcel.own))


def from_file(data: bytes) -> Parcel:
    """Undo `to_file`.

    Raises:
        ValueError: It is none, or too large (zlib's errors beside).
    """
    stored = _STORED.decode(data)
    return Parcel(unpack_parts(stored.parts), stored.own)


# ---------------------------------------------------------------------- on the way


def part_id(part: bytes) -> bytes:
    """Id of a part: its BLAKE2b of `ID_BYTES`."""
    return blake2b(part, digest_size=ID_BYTES).digest()


def pack_parts(parts: Sequence[bytes], level: int = 9) -> bytes:
    """Parts together, compressed."""
    return zlib.compress(msgspec.msgpack.encode(parts), level)


def unpack_parts(data: bytes) -> tuple[bytes, ...]:
    """Undo `pack_parts`.

    Raises:
        ValueError: These are none, or too many (zlib's errors beside).
    """
    return _PARTS.decode(_unpacked(data, zlib.decompressobj()))


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """Numbers of parts, many of which follow each other."""
    return zlib.compress(pack_whole(differences(np.asarray(numbers, dtype=np.int64))), 9)


def unpack_numbers(data: bytes, count: int) -> list[int]:
    """Undo `pack_numbers`.

    Raises:
        ValueError: These are not `count` numbers, or too many (zlib's errors beside).
    """
    if not 0 <= count <= _MOST_PARTS:
        raise ValueError(f"{count} parts are no pattern's")
    numbers: list[int] = np.cumsum(unpack_whole(_unpacked(data, zlib.decompressobj()), count)).tolist()
    return numbers


def _unpacked(data: bytes, unpacker: Any) -> bytes:
    plain: bytes = unpacker.decompress(data, _MOST_BYTES)
    if unpacker.unconsumed_tail:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    if not unpacker.eof:
        raise ValueError("compressed data are cut off")
    return plain


# ---------------------------------------------------------------------- rows


def _pack_rows(table: RowTable, scale: _Scale, columns: list[Whole]) -> None:
    """Times as differences from what they are about: the row before, its critical time, its mean execution."""
    of = {name: table.column(name) for name in NUMBERS}
    critical, total, device = (_steps(of[name], _SHORTEST_S, _ROW) for name in ("critical_s", "total_s", "device_s"))
    longest = _steps(of["max_s"], _SHORTEST_S, _LONGEST)
    beta = _steps(of["beta"] * scale.window_s, _SHORTEST_S, _ROW)
    columns += [
        differences(critical),
        beta - critical,
        total - critical,
        longest - _mean(total, of["count"]),
        device,
    ]
    columns += [np.rint(of[name] * _UTILIZATION).astype(np.int64) for name in ("mu", "sigma")]
    columns.append(_steps(of["beta_error"] * scale.window_s, _SHORTEST_S, _ERROR))
    columns += [of[name].astype(np.int64) for name in COUNTS]
    series = [_values(table.series_of(row), "<f4") for row in range(len(table))]
    columns += [table.resource.astype(np.int64), np.asarray([one.size for one in series], dtype=np.int64)]
    columns.append(_steps(np.concatenate([*series, np.empty(0)]), scale.floor_us, _IN_ITERATION))


def _mean(total: Whole, counts: NDArray[np.float64]) -> Whole:
    """Mean execution in steps of the longest, as both sides have it."""
    return to_steps(from_steps(total, _SHORTEST_S, _ROW) / np.maximum(counts, 1.0), _SHORTEST_S, _LONGEST)


def _rows(keys: Sequence[bytes], resources: tuple[str, ...], scale: _Scale, columns: _Columns) -> RowTable:
    take, count = columns.take, len(keys)
    critical = np.cumsum(take(count))
    beta, total, above, device = take(count) + critical, take(count) + critical, take(count), take(count)
    of = {name: take(count) / _UTILIZATION for name in ("mu", "sigma")}
    of["beta_error"] = from_steps(take(count), _SHORTEST_S, _ERROR) / (scale.window_s or 1.0)
    of |= {name: take(count).astype(np.float64) for name in COUNTS}
    of["critical_s"], of["total_s"], of["device_s"], of["beta"] = (
        from_steps(steps, _SHORTEST_S, _ROW) for steps in (critical, total, device, beta)
    )
    of["beta"] /= scale.window_s or 1.0
    of["max_s"] = from_steps(above + _mean(total, of["count"]), _SHORTEST_S, _LONGEST)
    resource, lengths = take(count).astype(np.int32), take(count)
    if count and not 0 <= resource.min() <= resource.max() < len(resources):
        raise ValueError("a row's resource has no name")
    if count and not (min(of[name].min() for name in COUNTS) >= 0 and lengths.min() >= 0):
        raise ValueError("a count in it is none")
    values = from_steps(take(int(lengths.sum())), scale.floor_us, _IN_ITERATION).astype("<f4")
    starts = np.cumsum(lengths) - lengths
    series = [_series(values[start : start + length], "<f4") for start, length in zip(starts, lengths, strict=True)]
    return RowTable(
        keys=tuple(map(key_of, keys)),
        numbers=np.stack([of[name] for name in NUMBERS]),
        resources=resources,
        resource=resource,
        series=b"".join(series),
        ends=np.cumsum(np.asarray([len(one) for one in series], dtype=np.int64)),
    )


# ---------------------------------------------------------------------- collectives


def _pack_record(record: CollectiveRecord, scale: _Scale, columns: list[Whole]) -> tuple[CollectiveRecord, int]:
    """The record without its series, and how long these are; as it is, and 0, where they are not of one length."""
    kinds = {"duration_us": "<f4", "critical_us": "<f4", "end_us": "<f8", **dict(_EXACT)}
    found = {name: _values(getattr(record, name), kinds[name]) for name in _SERIES}
    lengths = {values.size for values in found.values()} - {0}
    if len(lengths) != 1 or not found["duration_us"].size or not found["critical_us"].size:
        return record, 0
    duration, critical = (_steps(found[name], scale.floor_us, _EXECUTION) for name in ("duration_us", "critical_us"))
    columns += [np.asarray([bool(found[name].size) for name in _SERIES[2:]], dtype=np.int64), duration]
    columns.append(critical - duration)
    if found["end_us"].size:
        columns.append(differences(np.rint(found["end_us"] / scale.iteration_us * _END).astype(np.int64)))
    columns += [differences(found[name].astype(np.int64)) for name, _ in _EXACT if found[name].size]
    return msgspec.structs.replace(record, **dict.fromkeys(_SERIES, b"")), lengths.pop()


def _record(record: CollectiveRecord, length: int, scale: _Scale, columns: _Columns) -> CollectiveRecord:
    if not length:
        return record
    there = dict(zip(_SERIES[2:], columns.take(len(_SERIES) - 2).tolist(), strict=True))
    duration = columns.take(length)
    steps = {"duration_us": duration, "critical_us": columns.take(length) + duration}
    series = {n: _series(from_steps(s, scale.floor_us, _EXECUTION), "<f4") for n, s in steps.items()}
    if there["end_us"]:
        series["end_us"] = _series(np.cumsum(columns.take(length)) * (scale.iteration_us / _END), "<f8")
    series |= {name: _series(np.cumsum(columns.take(length)), kind) for name, kind in _EXACT if there[name]}
    return msgspec.structs.replace(record, **series)


# ---------------------------------------------------------------------- columns


class _Columns:
    """Columns of a parcel, taken one after another."""

    def __init__(self, columns: tuple[bytes, ...]) -> None:
        self._columns, self._values = iter(columns), 0

    def take(self, count: int) -> Whole:
        """The next one. int64 [count].

        Raises:
            ValueError: There is none, or it is no such column, or all of them hold too many values.
        """
        column = next(self._columns, None)
        self._values += count
        if column is None or not 0 <= self._values <= _MOST_VALUES or count < 0:
            raise ValueError(f"its columns do not hold {count} numbers more")
        return unpack_whole(column, count)


def _steps(values: NDArray[Any], floor: float, per_e: int) -> Whole:
    if not np.isfinite(values).all():
        raise ValueError("a number in it is none")
    return to_steps(values, floor, per_e)


def _values(series: bytes, kind: DTypeLike) -> NDArray[Any]:
    """Values of `eroica.model.series`."""
    return np.frombuffer(zlib.decompress(series) if series else b"", dtype=kind)


def _series(values: NDArray[Any], kind: DTypeLike) -> bytes:
    """The same as bytes, in zlib's form but not compressed.

    Written here: zlib takes three times as long, and lets go of the interpreter a hundred times a pattern, which a
    thread beside a busy event loop gets back late each time.
    """
    plain = values.astype(kind).tobytes()
    if not plain or len(plain) > _MOST_STORED:
        return zlib.compress(plain, 0) if plain else b""
    head = _STORED_HEAD.pack(b"\x78\x01\x01", len(plain), len(plain) ^ _MOST_STORED)
    return b"".join((head, plain, zlib.adler32(plain).to_bytes(4, "big")))
