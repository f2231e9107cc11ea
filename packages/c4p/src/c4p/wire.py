"""The wire format: a fixed header, then `length` bytes.

The sender of a piece opens the connection, so its source port (and with it the path) is the sender's choice.
Acknowledgements come back on the same connection.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

HEADER = struct.Struct("<4sBxxxIIII")
MAGIC = b"C4P1"


class Kind(enum.IntEnum):
    """The type of a message."""

    HELLO = 1  # payload: the group's token; `piece` is the sender's rank
    DATA = 2  # payload: one piece of an operation
    ACK = 3  # the piece is in the receiver's memory
    BYE = 4  # the sender of this message has finished all its operations and closes
    ABORT = 5  # payload: why the group cannot go on (UTF-8)


class Header(NamedTuple):
    """The header of a message.

    Attributes:
        kind: The type of the message.
        sequence: Number of the operation in its group, from 0.
        piece: Number of the piece in its operation.
        length: Bytes that follow the header.
        signature: Checksum of the operation's kind, type, size and reduction, so that members that call different
            operations are told so.
    """

    kind: Kind
    sequence: int = 0
    piece: int = 0
    length: int = 0
    signature: int = 0

    def packed(self) -> bytes:
        """Return the header as bytes."""
        return HEADER.pack(MAGIC, self.kind, self.sequence, self.piece, self.length, self.signature)


def parse_header(data: bytes | bytearray | memoryview) -> Header:
    """Parse a header.

    Raises:
        ValueError: The bytes are not of this protocol.
    """
    magic, kind, sequence, piece, length, signature = HEADER.unpack(data)
    if magic != MAGIC:
        raise ValueError(f"expected {MAGIC!r}, got {magic!r}: the other end does not speak this protocol")
    return Header(Kind(kind), sequence, piece, length, signature)
