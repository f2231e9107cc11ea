"""The collectives: what each rank sends to which peers, on flat CPU tensors.

The order of each sum depends on the ranks alone, so a run is bitwise repeatable whichever process holds a rank.
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


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy()) if tensor.numel() else _NOTHING


@dataclass(frozen=True)
class GroupContext:
    """The links of one group for one collective.

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
        """Move all announced bytes."""
        pump(traffics, self.wake, time.monotonic() + self.timeout_s)


def all_reduce(ctx: GroupContext, flat: torch.Tensor, operation: str) -> None:
    """Reduce the members' tensors in place, with the same result on all ranks.

    Args:
        ctx: The group.
        flat: Contiguous, one-dimensional, of a dtype that `check` has passed.
        operation: A key of COMBINE.

    Raises:
        LinkError: A peer is lost or late, or a recovery begins.
    """
    if ctx.size > 1:
        small = flat.numel() * flat.element_size() <= SMALL_BYTES or flat.numel() < ctx.size
        (_all_reduce_small if small else _ring)(ctx, flat, operation)
    if operation == "AVG":
        flat.div_(ctx.size)


def check(operation: str, tensors: Sequence[torch.Tensor]) -> None:
    """Check that tensors can be reduced, before a rank begins with it.

    Raises:
        UnsupportedError: An unknown operation, or one that torch does not have for a tensor's dtype.
    """
    if operation not in COMBINE:
        raise UnsupportedError(f"reduce operation {operation}: the trainmover backend has {', '.join(COMBINE)}")
    for dtype in {tensor.dtype for tensor in tensors}:
        if operation == "AVG" and not (dtype.is_floating_point or dtype.is_complex):
            raise UnsupportedError(f"reduce operation AVG of {dtype}: use SUM and divide")
        one = torch.zeros(1, dtype=dtype)
        try:
            COMBINE[operation](one, one)
        except RuntimeError as error:
            raise UnsupportedError(f"reduce operation {operation} of {dtype}: {error}") from error


def _all_reduce_small(ctx: GroupContext, flat: torch.Tensor, operation: str) -> None:
    """Send each rank's tensor to all ranks in one round."""
    pieces = [torch.empty_like(flat) for _ in range(ctx.size)]
    pieces[ctx.rank] = flat.clone()
    exchange(ctx, dict.fromkeys(ctx.links, pieces[ctx.rank]), {peer: pieces[peer] for peer in ctx.links}, "all_reduce")
    _fold(flat, pieces, operation)


def _fold(into: torch.Tensor, parts: Sequence[torch.Tensor], operation: str) -> None:
    """Combine the members' tensors in the order of their ranks."""
    into.copy_(parts[0])
    for part in parts[1:]:
        COMBINE[operation](into, part)


def _ring(ctx: GroupContext, flat: torch.Tensor, operation: str, *, gather: bool = True) -> None:
    """Reduce around the ring, then pass the results around it; chunks are sent on when they are combined.

    Without `gather`, each rank ends with its own segment of the result and the others in pieces.
    """
    rank, size = ctx.rank, ctx.size
    segments = flat.tensor_split(size)
    first = rank if gather else rank - 1  # the segment that this rank sends first
    n_steps = 2 * size - 2 if gather else size - 1
    left, right = Traffic(ctx.links[(rank - 1) % size]), Traffic(ctx.links[(rank + 1) % size])
    if size == 2:
        left = right
    chunk = max(1, CHUNK_BYTES // flat.element_size())
    scratch = torch.empty(chunk, dtype=flat.dtype)
    item = flat.element_size()
    lengths = [item * segments[(first - step) % size].numel() for step in range(n_steps + 1)]
    right.sends(ctx.sequence, CODES["all_reduce"], sum(lengths[:-1]))
    left.expects(ctx.sequence, CODES["all_reduce"], sum(lengths[1:]))
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
    ctx.run([left] if left is right else [left, right])


def reduce_scatter(ctx: GroupContext, output: torch.Tensor, pieces: Sequence[torch.Tensor], operation: str) -> None:
    """Reduce the members' lists of tensors; each member gets the one of its rank.

    Args:
        ctx: The group.
        output: Flat tensor of this rank's piece.
        pieces: One flat tensor per rank; left as they are.
        operation: A key of COMBINE.

    Raises:
        LinkError: As `all_reduce`.
    """
    equal = all(piece.numel() == pieces[0].numel() for piece in pieces)
    if ctx.size == 1:
        output.copy_(pieces[0])
    elif equal and pieces[0].numel() * output.element_size() > SMALL_BYTES:
        work = torch.cat(list(pieces))
        _ring(ctx, work, operation, gather=False)
        output.copy_(work.tensor_split(ctx.size)[ctx.rank])
    else:
        parts = [torch.empty_like(output) for _ in range(ctx.size)]
        parts[ctx.rank].copy_(pieces[ctx.rank])
        exchange(ctx, {peer: pieces[peer] for peer in ctx.links}, {peer: parts[peer] for peer in ctx.links})
        _fold(output, parts, operation)
    if operation == "AVG":
        output.div_(ctx.size)


def reduce(ctx: GroupContext, flat: torch.Tensor, root: int, operation: str) -> None:
    """Reduce the members' tensors in place at the root."""
    if ctx.rank != root:
        exchange(ctx, {root: flat}, {}, "reduce")
        return
    parts = {peer: torch.empty_like(flat) for peer in ctx.links}
    exchange(ctx, {}, parts, "reduce")
    parts[root] = flat.clone()
    _fold(flat, [parts[rank] for rank in range(ctx.size)], operation)
    if operation == "AVG":
        flat.div_(ctx.size)


def broadcast(ctx: GroupContext, flat: torch.Tensor, root: int) -> None:
    """Send the root's tensor to all ranks: along a chain in chunks, small tensors directly."""
    rank, size = ctx.rank, ctx.size
    if size == 1:
        return
    n_bytes = flat.numel() * flat.element_size()
    if n_bytes <= SMALL_BYTES:
        outgoing = dict.fromkeys(ctx.links, flat) if rank == root else {}
        exchange(ctx, outgoing, {} if rank == root else {root: flat}, "broadcast")
        return
    place = (rank - root) % size
    before = Traffic(ctx.links[(rank - 1) % size]) if place else None
    after = Traffic(ctx.links[(rank + 1) % size]) if place < size - 1 else None
    parts = flat.split(max(1, CHUNK_BYTES // flat.element_size()))
    if after is not None:
        after.sends(ctx.sequence, CODES["broadcast"], n_bytes)
    if before is None:
        for part in parts:
            if after is not None:
                after.push(bytes_of(part))
    else:
        before.expects(ctx.sequence, CODES["broadcast"], n_bytes)
        for part in parts:
            before.into(bytes_of(part), None if after is None else partial(after.push, bytes_of(part)))
    ctx.run([traffic for traffic in (before, after) if traffic is not None])


def exchange(
    ctx: GroupContext,
    outgoing: Mapping[int, torch.Tensor],
    incoming: Mapping[int, torch.Tensor],
    name: str = "exchange",
) -> None:
    """Send one message to each peer of `outgoing` and receive one from each of `incoming`, at once.

    Args:
        ctx: The group.
        outgoing: Flat tensors by rank within the group; this rank's own is ignored.
        incoming: Flat tensors to fill, likewise.
        name: What the collective is called in the header, a key of CODES.
    """
    traffics = {peer: Traffic(ctx.links[peer]) for peer in {*outgoing, *incoming} - {ctx.rank}}
    for peer, traffic in traffics.items():
        if peer in outgoing:
            view = bytes_of(outgoing[peer])
            traffic.sends(ctx.sequence, CODES[name], view.nbytes)
            traffic.push(view)
        if peer in incoming:
            view = bytes_of(incoming[peer])
            traffic.expects(ctx.sequence, CODES[name], view.nbytes)
            traffic.into(view)
    ctx.run(list(traffics.values()))


def barrier(ctx: GroupContext) -> None:
    """Wait until all members have called."""
    nothing = torch.empty(0, dtype=torch.uint8)
    exchange(ctx, dict.fromkeys(ctx.links, nothing), dict.fromkeys(ctx.links, nothing), "barrier")
