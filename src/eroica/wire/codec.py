"""Records as bytes between processes and on disk: MessagePack, zlib-compressed, bounded on the way in."""

from __future__ import annotations

import zlib
from typing import TypeVar

import msgspec

from eroica.errors import InputError

MAX_DECODED_BYTES = 4_000_000
Record = TypeVar("Record")


def encode_record(record: msgspec.Struct) -> bytes:
    """A record of `eroica.model` as compressed MessagePack."""
    return zlib.compress(msgspec.msgpack.encode(record), 6)


def decode_record(data: bytes, kind: type[Record]) -> Record:
    """What `encode_record` made.

    Args:
        data: Bytes from a peer or a file; nothing is assumed about them.
        kind: The expected record type.

    Raises:
        InputError: They are no such record, or more than 4 MB when unpacked.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, MAX_DECODED_BYTES)
        if unpacker.unconsumed_tail:
            raise InputError(f"{kind.__name__} of more than {MAX_DECODED_BYTES} bytes refused")
        return msgspec.msgpack.decode(text, type=kind)
    except (zlib.error, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"these {len(data)} bytes are no {kind.__name__}: {error}") from error
