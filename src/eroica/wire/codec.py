"""Records as bytes between processes and on disk: MessagePack, zlib-compressed, bounded on the way in.

Patterns take the way of `wire.patterns`, which keeps once what many of them have in common.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from zlib_ng import zlib_ng

from eroica.errors import InputError
from eroica.model.pattern import WorkerPattern
from eroica.wire.patterns import pack_pattern, unpack_pattern

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
