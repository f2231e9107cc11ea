"""Ring operations as pure state: which bytes may be sent now, what an arriving piece does.

No socket and no clock here. A buffer of N elements is cut into W chunks, a chunk into pieces. Data flow from rank r to
rank r - 1, and the sum of chunk c is (((x[c-1] + x[c-2]) + x[c-3]) + ...) + x[c], indices modulo W: the order of
gloo's ring, so floating-point results are the same bits.

Suffixes of arrays: N elements of the operation's type.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from c4p.errors import BadRequest

#: Largest segment of gloo's ring (gloo/allreduce.h, kMaxSegmentSize); decides where its chunks begin.
GLOO_SEGMENT_BYTES = 1024 * 1024
SMALLEST_PIECE_BYTES = 16 * 1024
LARGEST_PIECE_BYTES = 96 * 1024

Combine = Callable[[int, int, memoryview], None]
REDUCTIONS: dict[str, Any] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def gloo_chunks(elements: int, item_bytes: int, size: int) -> list[tuple[int, int]]:
    """Where gloo's ring allreduce cuts a buffer, so that each element is summed in gloo's order.

    Args:
        elements: Elements of the buffer.
        item_bytes: Bytes of one element.
        size: Members of the group.

    Returns:
        First and last-plus-one element of each rank's chunk; later chunks may be empty.

    Source:
        gloo/allreduce.cc, `ring`: segments of at most 1 MiB, at least two for each rank, all equally long.
    """
    total = elements * item_bytes
    longest = item_bytes * max(1, GLOO_SEGMENT_BYTES // item_bytes)
    segments = max(-(-total // longest), 2 * size)
    segments += -segments % size
    segment_bytes = -(-total // segments)
    segment = -(-segment_bytes // item_bytes)
    chunk = segment * (segments // size)
    return [(min(rank * chunk, elements), min((rank + 1) * chunk, elements)) for rank in range(size)]


def even_chunks(elements: int, size: int) -> list[tuple[int, int]]:
    """Equal slices, one for each rank, of a buffer that `size` divides."""
    if elements % size:
        raise BadRequest(f"{elements} elements cannot be split evenly over {size} ranks; pad the buffer")
    slice_ = elements // size
    return [(rank * slice_, (rank + 1) * slice_) for rank in range(size)]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the buffer. `number` is the same at both ends; `start` and `stop` are bytes."""

    number: int
    start: int
    stop: int


@dataclass(slots=True)
class Operation:
    """One collective operation of one member.

    Attributes:
        name: "allreduce", "reduce_scatter", "allgather" or "broadcast"; for messages.
        buffer: The bytes that the operation reads and writes.
        item_bytes: Bytes of one element.
        signature: The same on all members of one operation.
        combine: Called with first and last-plus-one element and the received bytes, where a piece is reduced.
    """

    name: str
    buffer: memoryview
    item_bytes: int
    signature: int
    combine: Combine | None
    _sends: dict[int, list[Piece]] = field(default_factory=dict)  # ready at the arrival of a piece; -1: from the start
    _awaited: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    expected: int = 0

    def start(self) -> list[Piece]:
        """Pieces that can be sent before anything has arrived."""
        return self._sends.pop(-1, [])

    def take(self, number: int, payload: memoryview) -> list[Piece] | None:
        """An arrived piece is stored or reduced.

        Args:
            number: The piece's number.
            payload: Its bytes.

        Returns:
            The pieces that can be sent now. None where this piece had arrived before: it is left alone.

        Raises:
            ValueError: The piece is not of this operation, or has another length.
        """
        place = self._awaited.pop(number, None)
        if place is None:
            return None
        start, stop, reduces = place
        if len(payload) != stop - start:
            raise ValueError(f"piece {number} of {self.name} has {len(payload)} bytes, {stop - start} were expected")
        if reduces and self.combine is not None:
            self.combine(start // self.item_bytes, stop // self.item_bytes, payload)
        else:
            self.buffer[start:stop] = payload
        return self._sends.pop(number, [])

    @property
    def arrived(self) -> int:
        """Pieces that have arrived."""
        return self.expected - len(self._awaited)

    @property
    def complete(self) -> bool:
        """Nothing more is to arrive, and so all that this member sends has been handed out."""
        return not self._awaited

    def _expect(self, number: int, start: int, stop: int, reduces: bool, then: list[Piece]) -> None:
        self._awaited[number] = (start, stop, reduces)
        self.expected += 1
        if then:
            self._sends[number] = then


def signature(name: str, *facts: object) -> int:
    """Checksum of what all members must agree on."""
    return zlib.crc32(repr((name, *facts)).encode())


def piece_bytes(chunk_bytes: int, item_bytes: int, sockets: int) -> int:
    """Length of a piece: each socket gets about sixteen of a chunk, within 16 and 96 KiB, whole elements."""
    wanted = min(max(chunk_bytes // (16 * max(1, sockets)), SMALLEST_PIECE_BYTES), LARGEST_PIECE_BYTES)
    return max(item_bytes, wanted - wanted % item_bytes)


@dataclass(frozen=True, slots=True)
class RingPosition:
    """Where in a ring an operation runs: this rank of `size`, `sockets` to each neighbour."""

    rank: int
    size: int
    sockets: int


def reducer(array_N: np.ndarray[Any, Any], reduction: str) -> Combine:
    """Reduces received bytes into a numpy array; the local value is the left operand, as in gloo."""
    function = REDUCTIONS.get(reduction)
    if function is None:
        raise BadRequest(f"no reduction {reduction!r}; there are {', '.join(REDUCTIONS)}")

    def combine(start: int, stop: int, payload: memoryview) -> None:
        mine = array_N[start:stop]
        function(mine, np.frombuffer(payload, dtype=array_N.dtype), out=mine)

    return combine


def ring_operation(
    name: str,
    buffer: memoryview,
    item_bytes: int,
    chunks: list[tuple[int, int]],
    place: RingPosition,
    combine: Combine | None,
    facts: tuple[object, ...] = (),
) -> Operation:
    """Allreduce, its first half (reduce_scatter) or its second half (allgather).

    Args:
        name: Which of the three.
        buffer: All N elements as bytes, changed in place.
        item_bytes: Bytes of one element.
        chunks: First and last-plus-one element of each rank's chunk.
        place: This member.
        combine: The reduction; None for allgather.
        facts: What else the members must agree on.

    Returns:
        The operation. After it chunk `rank` (reduce_scatter) or the whole buffer is complete.

    Source:
        Ring of gloo/allreduce.cc: in step s rank r sends chunk r + 1 + s and receives chunk r + 2 + s; the steps
        0 to W - 2 reduce, W - 1 to 2W - 3 gather. Here a piece goes on as soon as it has arrived.
    """
    size, rank = place.size, place.rank
    longest = max(stop - start for start, stop in chunks) * item_bytes
    length = piece_bytes(longest, item_bytes, place.sockets)
    pieces_per_chunk = max(1, -(-longest // length))
    first = size - 1 if name == "allgather" else 0
    last = size - 2 if name == "reduce_scatter" else 2 * size - 3
    operation = Operation(name, buffer, item_bytes, signature(name, size, item_bytes, chunks[-1], facts), combine)

    def pieces(step: int, chunk: int) -> list[Piece]:
        start, stop = (edge * item_bytes for edge in chunks[chunk % size])
        cuts = range(start, stop, length)
        return [Piece(step * pieces_per_chunk + k, cut, min(cut + length, stop)) for k, cut in enumerate(cuts)]

    operation._sends[-1] = pieces(first, rank + 1 + first)
    for step in range(first, last + 1):
        goes_on = pieces(step + 1, rank + 2 + step) if step < last else []
        for index, piece in enumerate(pieces(step, rank + 2 + step)):
            then = goes_on[index : index + 1]
            operation._expect(piece.number, piece.start, piece.stop, step < size - 1, then)
    return operation


def broadcast_operation(buffer: memoryview, root: int, place: RingPosition) -> Operation:
    """The root's bytes go along the ring, piece by piece; each member passes on what arrives.

    Args:
        buffer: The bytes, read at the root and written elsewhere.
        root: The rank that has them.
        place: This member.
    """
    distance = (root - place.rank) % place.size
    length = piece_bytes(len(buffer), 1, place.sockets)
    operation = Operation("broadcast", buffer, 1, signature("broadcast", len(buffer), root), None)
    pieces = [Piece(k, cut, min(cut + length, len(buffer))) for k, cut in enumerate(range(0, len(buffer), length))]
    passes_on = distance < place.size - 1
    if distance == 0:
        operation._sends[-1] = pieces if passes_on else []
        return operation
    for piece in pieces:
        operation._expect(piece.number, piece.start, piece.stop, False, [piece] if passes_on else [])
    return operation
