"""Records as bytes between processes and on disk: MessagePack, zlib-compressed, bounded on the way in.

Of patterns, what many of them have in common (functions, process groups) is kept once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np
from zlib_ng import zlib_ng

from eroica.errors import InputError
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.rows import COUNTS, NUMBERS, RowTable
from eroica.model.worker import ProcessGroup

#: Shorter lists of ranks travel as they are.
_LONG_LIST = 16
#: Ranks that all groups of one pattern may name together, and one alone: few bytes must not become gigabytes.
_MOST_MEMBERS, _LARGEST_GROUP = 2_000_000, 200_000
#: No rank lies beyond: ranks are compared as 64-bit numbers.
_MOST_RANK = 2**62
#: The column that patterns of before lack.
_NEWEST = "device_s"
#: Counts are exact in the columns' 64-bit floats up to here.
_MOST_COUNT = 2.0**53


class WireTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows as they travel; all numbers are little-endian.

    Attributes:
        keys: Each row's function, as MessagePack of its own.
        numbers: `NUMBERS` of all rows, column by column. float64 [N, R].
        resources: Names of resources.
        resource: Which of them bounds each row. int32 [R].
        series: `per_iteration_us` of all rows, one after another.
        ends: Where in `series` that of each row ends. int64 [R].
    """

    keys: tuple[bytes, ...]
    numbers: bytes
    resources: tuple[str, ...]
    resource: bytes
    series: bytes
    ends: bytes


class _WireGroup(ProcessGroup, frozen=True, kw_only=True):
    """A group as it travels: `ranks`, or `span` = first, step and count."""

    span: tuple[int, int, int] | None = None


class _WirePattern(WorkerPattern, frozen=True, kw_only=True):
    functions: WireTable | tuple[FunctionPattern, ...]  # type: ignore[assignment]
    process_groups: tuple[_WireGroup, ...] = ()


_DECODER = msgspec.msgpack.Decoder(_WirePattern)
_KEY_DECODER = msgspec.msgpack.Decoder(FunctionKey)


#: Functions by their bytes, which recent patterns have in common.
_key = lru_cache(50_000)(_KEY_DECODER.decode)


@lru_cache(64)  # so many that recent patterns have in common, each with `_LARGEST_GROUP` ranks at most
def _group(
    name: str, description: str, backend: str, ranks: tuple[int, ...], span: tuple[int, int, int] | None
) -> ProcessGroup:
    """The group that travelled so."""
    members = ranks if span is None else _members(*span)
    return ProcessGroup(name=name, description=description, ranks=members, backend=backend)


def pack_pattern(pattern: WorkerPattern) -> bytes:
    """A pattern as MessagePack."""
    groups = tuple(packed_group(group) for group in pattern.process_groups)
    rows: Any = pack_rows(pattern.functions)
    return msgspec.msgpack.encode(msgspec.structs.replace(pattern, process_groups=groups, functions=rows))


def pack_rows(rows: Sequence[FunctionPattern]) -> WireTable:
    """Rows as they travel."""
    table = RowTable.of(rows)
    return WireTable(
        keys=tuple(map(msgspec.msgpack.encode, table.keys)),
        numbers=table.numbers.astype("<f8").tobytes(),
        resources=table.resources,
        resource=table.resource.astype("<i4").tobytes(),
        series=table.series,
        ends=table.ends.astype("<i8").tobytes(),
    )


def unpack_pattern(text: bytes) -> WorkerPattern:
    """What `pack_pattern` made.

    Raises:
        ValueError: It is no pattern (msgspec's errors are ValueErrors), or its columns do not fit together, or its
            groups name too many ranks, or ranks that no job has.
    """
    wire = _DECODER.decode(text)
    if sum(map(_size, wire.process_groups)) > _MOST_MEMBERS:
        raise ValueError(f"its process groups name more than {_MOST_MEMBERS} ranks")
    values: dict[str, Any] = {name: getattr(wire, name) for name in WorkerPattern.__struct_fields__}
    rows = wire.functions
    if isinstance(rows, WireTable):
        values["functions"] = _table(rows)
    else:  # as version 0.1.0 sent them
        values["functions"] = tuple(
            msgspec.structs.replace(row, key=_key(msgspec.msgpack.encode(row.key))) for row in rows
        )
    values["process_groups"] = tuple(
        _group(one.name, one.description, one.backend, one.ranks, one.span) for one in wire.process_groups
    )
    return WorkerPattern(**values)


def _table(wire: WireTable) -> RowTable:
    """The rows that travelled so."""
    numbers = np.frombuffer(wire.numbers, dtype="<f8")
    resource, ends = np.frombuffer(wire.resource, dtype="<i4"), np.frombuffer(wire.ends, dtype="<i8")
    rows = len(wire.keys)
    is_older = rows > 0 and numbers.size == (len(NUMBERS) - 1) * rows
    if is_older:
        numbers = np.insert(numbers.reshape(-1, rows), NUMBERS.index(_NEWEST), 0.0, axis=0).ravel()
    if (numbers.size, resource.size, ends.size) != (len(NUMBERS) * rows, rows, rows):
        raise ValueError(f"columns of {numbers.size}, {resource.size} and {ends.size} values are not {rows} rows")
    columns = numbers.reshape(len(NUMBERS), rows)
    if rows:
        counts = columns[-len(COUNTS) :]
        if not (counts.min() >= 0 and counts.max() <= _MOST_COUNT):  # not a number is neither
            raise ValueError("a count in it is none")
        if not 0 <= resource.min() <= resource.max() < len(wire.resources):
            raise ValueError("a row's resource has no name")
        if ends[0] < 0 or ends[-1] != len(wire.series) or (ends[1:] < ends[:-1]).any():
            raise ValueError("its series have no ends")
    return RowTable(
        keys=tuple(map(_key, wire.keys)),
        numbers=columns,
        resources=wire.resources,
        resource=resource,
        series=wire.series,
        ends=ends,
    )


def packed_group(group: ProcessGroup) -> ProcessGroup:
    """The group as it travels."""
    ranks = group.ranks
    if len(ranks) < _LONG_LIST:
        return group
    span = ranks[0], ranks[1] - ranks[0], len(ranks)
    if span[1] <= 0 or ranks != _members(*span):
        return group
    return _WireGroup(name=group.name, description=group.description, backend=group.backend, span=span)


def _size(group: _WireGroup) -> int:
    """How many ranks a group names; its span is checked before anything is built from it."""
    if group.span is None:
        if len(group.ranks) > _LARGEST_GROUP:
            raise ValueError(f"{len(group.ranks)} ranks are no process group")
        return len(group.ranks)
    first, step, count = group.span
    if first < 0 or step <= 0 or not 0 <= count <= _LARGEST_GROUP or first + step * count > _MOST_RANK:
        raise ValueError(f"{count} ranks from {first} in steps of {step} are no process group")
    return count


def _members(first: int, step: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + step * count, step))


#: zlib's interface, a fifth quicker for patterns; the type stubs lack `error`.
_ng: Any = zlib_ng
MAX_DECODED_BYTES = 4_000_000
UNDECODABLE = (zlib.error, _ng.error, ValueError, RecursionError)
"""What hostile bytes make a decoder raise: msgspec's errors are ValueErrors, and so is text that is no UTF-8; bytes
nested too deeply end in a RecursionError."""
_LONGEST_TEXT = 500
Record = TypeVar("Record")


def encode_record(record: msgspec.Struct) -> bytes:
    """A record of `eroica.model` as compressed MessagePack."""
    packed = pack_pattern(record) if isinstance(record, WorkerPattern) else msgspec.msgpack.encode(record)
    return zlib.compress(packed, 6)


def decode_record(data: bytes, kind: type[Record]) -> Record:
    """What `encode_record` made.

    Args:
        data: Bytes from a peer or a file; nothing is assumed about them.
        kind: The expected record type.

    Raises:
        InputError: They are no such record, or more than 4 MB when unpacked.
    """
    unpacker = _ng.decompressobj()
    try:
        text = unpacker.decompress(data, MAX_DECODED_BYTES)
        if unpacker.unconsumed_tail:
            raise InputError(f"{kind.__name__} of more than {MAX_DECODED_BYTES} bytes refused")
        if kind is WorkerPattern:
            return unpack_pattern(text)  # type: ignore[return-value]
        return msgspec.msgpack.decode(text, type=kind)
    except UNDECODABLE as error:
        raise InputError(f"these {len(data)} bytes are no {kind.__name__}: {error}") from error


def decode_message(data: bytes, kind: type[Record]) -> Record:
    """A message that came over the network as MessagePack; nothing is assumed about it.

    Raises:
        InputError: It is no such message.
    """
    return _decode(msgspec.msgpack.decode, data, kind)


def decode_json(data: bytes, kind: type[Record]) -> Record:
    """The same of JSON.

    Raises:
        InputError: It is no such message.
    """
    return _decode(msgspec.json.decode, data, kind)


def _decode(decode: Callable[..., Record], data: bytes, kind: type[Record]) -> Record:
    try:
        return decode(data, type=kind)
    except UNDECODABLE as error:
        raise InputError(f"these {len(data)} bytes are no {kind.__name__}: {error}") from error


def plain(text: str) -> str:
    """`text` as every message can carry it: at most 500 characters, names that are no UTF-8 made readable."""
    return text[:_LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()
