"""The collectives themselves: what each rank sends to whom, over links, on flat CPU tensors.

Every sum is made in an order that depends on the ranks alone (around the ring from a fixed place, or by rank), so
that a run is repeatable to the last bit, whoever holds a rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from trainmover.errors import UnsupportedError
from trainmover.transport import Link, Traffic, Wake, pump

CHUNK_BYTES = 1 << 18
SMALL_BYTES = 1 << 14
_NOTHING = memoryview(b"")

Combine = Callable[[torch.Tensor, torch.Tensor], object]
COMBINE: dict[str, Combine] = {
    "SUM": lambda into, other: into.add_(other),
    "AVG": lambda into, other: into.add_(other),
    "PRODUCT": lambda into, other: into.mul_(other),
    "MIN": lambda into, other: torch.minimum(into, other, out=into),
    "MAX": lambda into, other: torch.maximum(into, other, out=into),
    "BAND": lambda into, other: into.bitwise_and_(other),
    "BOR": lambda into, other: into.bitwise_or_(other),
    "BXOR": lambda into, other: into.bitwise_xor_(other),
}
CODES = {name: code for code, name in enumerate(("all_reduce", "reduce", "broadcast", "exchange", "barrier"), 1)}


def bytes_of(flat: torch.Tensor) -> memoryview:
    """The memory of a contiguous one-dimensional CPU tensor."""
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else _NOTHING


@dataclass(frozen=True)
class Circle:
    """The links of one group at one moment.

    Attributes:
        rank: This member's rank within the group.
        size: Members of the group.
        links: Link to every other member, by its rank within the group.
        wake: Ends every wait early.
        timeout_s: Longest wait for a peer in one collective.
        sequence: Number of the collective within the group.
    """

    rank: int
    size: int
    links: Mapping[int, Link]
    wake: Wake
    timeout_s: float
    sequence: int

    def run(self, traffics: Sequence[Traffic]) -> None:
        """Move everything that was announced."""
        pump(traffics, self.wake, time.monotonic() + self.timeout_s)


def all_reduce(circle: Circle, flat: torch.Tensor, operation: str) -> None:
    """Combine the members' tensors, in place, the same result everywhere.

    Args:
        circle: The group.
        flat: Contiguous, one-dimensional, any dtype that the operation knows.
        operation: A key of COMBINE.

    Raises:
        UnsupportedError: An unknown operation, or AVG of integers.
        LinkError: A peer is lost, late, or the members are called together.
    """
    _check(operation, flat)
    if circle.size > 1:
        small = flat.numel() * flat.element_size() <= SMALL_BYTES or flat.numel() < circle.size
        (_all_reduce_small if small else _ring)(circle, flat, operation)
    if operation == "AVG":
        flat.div_(circle.size)


def _check(operation: str, flat: torch.Tensor) -> None:
    if operation not in COMBINE:
        raise UnsupportedError(f"reduce operation {operation}: the trainmover backend has {', '.join(COMBINE)}")
    if operation == "AVG" and not (flat.is_floating_point() or flat.is_complex()):
        raise UnsupportedError(f"reduce operation AVG of {flat.dtype}: use SUM and divide")


def _all_reduce_small(circle: Circle, flat: torch.Tensor, operation: str) -> None:
    """Everybody sends everything to everybody: one round."""
    pieces = [torch.empty_like(flat) for _ in range(circle.size)]
    pieces[circle.rank] = flat.clone()
    exchange(
        circle,
        dict.fromkeys(circle.links, pieces[circle.rank]),
        {peer: pieces[peer] for peer in circle.links},
        "all_reduce",
    )
    flat.copy_(pieces[0])
    for piece in pieces[1:]:
        COMBINE[operation](flat, piece)


def _ring(circle: Circle, flat: torch.Tensor, operation: str, *, gather: bool = True) -> None:
    """Reduce around the ring, then pass the results on around it; chunks are sent on as soon as they are combined.

    Without `gather`, each rank ends with its own segment of the result and the others in pieces.
    """
    rank, size = circle.rank, circle.size
    segments = flat.tensor_split(size)
    first = rank if gather else rank - 1  # the segment that this rank sends first
    n_steps = 2 * size - 2 if gather else size - 1
    left, right = Traffic(circle.links[(rank - 1) % size]), Traffic(circle.links[(rank + 1) % size])
    if size == 2:
        left = right
    chunk = max(1, CHUNK_BYTES // flat.element_size())
    scratch = torch.empty(chunk, dtype=flat.dtype)
    item = flat.element_size()
    right.sends(
        circle.sequence,
        CODES["all_reduce"],
        item * sum(segments[(first - step) % size].numel() for step in range(n_steps)),
    )
    left.expects(
        circle.sequence,
        CODES["all_reduce"],
        item * sum(segments[(first - step - 1) % size].numel() for step in range(n_steps)),
    )
    for part in segments[first % size].split(chunk):
        right.push(bytes_of(part))
    for step in range(n_steps):
        for part in segments[(first - step - 1) % size].split(chunk):
            reduces, goes_on = step < size - 1, step < n_steps - 1
            source = scratch[: part.numel()] if reduces else part

            def arrived(
                part: torch.Tensor = part, source: torch.Tensor = source, reduces: bool = reduces, on: bool = goes_on
            ) -> None:
                if reduces:
                    COMBINE[operation](part, source)
                if on:
                    right.push(bytes_of(part))
                    right.send_some()

            left.into(bytes_of(source), arrived)
    circle.run([left] if left is right else [left, right])


def reduce_scatter(circle: Circle, output: torch.Tensor, pieces: Sequence[torch.Tensor], operation: str) -> None:
    """Combine the members' lists of pieces; each member gets the piece of its rank.

    Args:
        circle: The group.
        output: Flat tensor of this rank's piece.
        pieces: One flat tensor per rank; left as they are.
        operation: A key of COMBINE.

    Raises:
        UnsupportedError: As `all_reduce`.
        LinkError: As `all_reduce`.
    """
    _check(operation, output)
    equal = all(piece.numel() == pieces[0].numel() for piece in pieces)
    if circle.size == 1:
        output.copy_(pieces[0])
    elif equal and pieces[0].numel() * output.element_size() > SMALL_BYTES:
        work = torch.cat(list(pieces))
        _ring(circle, work, operation, gather=False)
        output.copy_(work.tensor_split(circle.size)[circle.rank])
    else:
        parts = [torch.empty_like(output) for _ in range(circle.size)]
        parts[circle.rank].copy_(pieces[circle.rank])
        exchange(circle, {peer: pieces[peer] for peer in circle.links}, {peer: parts[peer] for peer in circle.links})
        output.copy_(parts[0])
        for part in parts[1:]:
            COMBINE[operation](output, part)
    if operation == "AVG":
        output.div_(circle.size)


def reduce(circle: Circle, flat: torch.Tensor, root: int, operation: str) -> None:
    """Combine the members' tensors at the root, in place there; the others keep theirs."""
    _check(operation, flat)
    if circle.rank != root:
        exchange(circle, {root: flat}, {}, "reduce")
        return
    parts = {peer: torch.empty_like(flat) for peer in circle.links}
    exchange(circle, {}, parts, "reduce")
    parts[root] = flat.clone()
    flat.copy_(parts[0])
    for rank in range(1, circle.size):
        COMBINE[operation](flat, parts[rank])
    if operation == "AVG":
        flat.div_(circle.size)


def broadcast(circle: Circle, flat: torch.Tensor, root: int) -> None:
    """The root's tensor to everybody: along a chain in chunks, small ones directly."""
    rank, size = circle.rank, circle.size
    if size == 1:
        return
    n_bytes = flat.numel() * flat.element_size()
    if n_bytes <= SMALL_BYTES:
        exchange(
            circle,
            dict.fromkeys(circle.links, flat) if rank == root else {},
            {} if rank == root else {root: flat},
            "broadcast",
        )
        return
    place = (rank - root) % size
    before = Traffic(circle.links[(rank - 1) % size]) if place else None
    after = Traffic(circle.links[(rank + 1) % size]) if place < size - 1 else None
    parts = flat.split(max(1, CHUNK_BYTES // flat.element_size()))
    if after is not None:
        after.sends(circle.sequence, CODES["broadcast"], n_bytes)
    if before is None:
        for part in parts:
            if after is not None:
                after.push(bytes_of(part))
    else:
        before.expects(circle.sequence, CODES["broadcast"], n_bytes)
        for part in parts:
            before.into(bytes_of(part), None if after is None else partial(after.push, bytes_of(part)))
    circle.run([traffic for traffic in (before, after) if traffic is not None])


def exchange(
    circle: Circle, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor], name: str = "exchange"
) -> None:
    """One message to each peer of `outgoing` and one from each of `incoming`, all at once.

    Args:
        circle: The group.
        outgoing: Flat tensors by rank within the group; this rank's own is ignored.
        incoming: Flat tensors to fill, likewise.
        name: What the collective is called in the header, a key of CODES.
    """
    traffics = {peer: Traffic(circle.links[peer]) for peer in {*outgoing, *incoming} - {circle.rank}}
    for peer, traffic in traffics.items():
        if peer in outgoing:
            view = bytes_of(outgoing[peer])
            traffic.sends(circle.sequence, CODES[name], view.nbytes)
            traffic.push(view)
        if peer in incoming:
            view = bytes_of(incoming[peer])
            traffic.expects(circle.sequence, CODES[name], view.nbytes)
            traffic.into(view)
    circle.run(list(traffics.values()))


def barrier(circle: Circle) -> None:
    """Nobody leaves before everybody has come."""
    nothing = torch.empty(0, dtype=torch.uint8)
    exchange(circle, dict.fromkeys(circle.links, nothing), dict.fromkeys(circle.links, nothing), "barrier")
