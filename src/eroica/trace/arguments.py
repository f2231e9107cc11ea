"""What events say in their arguments: collectives, names of threads, whether an annotation has ended."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from eroica.trace.events import Event
from eroica.trace.table import CollectiveArguments

#: Calls with (tensors, group, rank of the other side in the group, tag).
DIRECT_CALLS = {"c10d::send": "send", "c10d::recv_": "recv"}
_CORRELATION = re.compile(rb'"correlation"\s*:\s*(\d{1,18})\b')
_MOST_TEXT = 500
_MOST_DIMENSIONS = 64
_MOST_RANKS_TEXT = 10_000_000


class _Collective(msgspec.Struct, gc=False):
    collective: Any = msgspec.field(default="", name="Collective name")
    group: Any = msgspec.field(default="", name="Process Group Name")
    sequence_upper: Any = msgspec.field(default=None, name="Seq")
    sequence_lower: Any = msgspec.field(default=None, name="seq")
    elements: Any = msgspec.field(default=0, name="In msg nelems")
    group_size: Any = msgspec.field(default=0, name="Group size")
    ranks: Any = msgspec.field(default="", name="Process Group Ranks")
    source: Any = msgspec.field(default=-1, name="Src Rank")
    destination: Any = msgspec.field(default=-1, name="Dst Rank")
    external_id: Any = msgspec.field(default=None, name="External id")
    correlation: Any = None


class _Inputs(msgspec.Struct, gc=False):
    values: Any = msgspec.field(default=(), name="Concrete Inputs")
    sizes: Any = msgspec.field(default=(), name="Input Dims")


class _State(msgspec.Struct):
    finished: bool = True


class _Named(msgspec.Struct):
    name: str = ""


class _Labelled(msgspec.Struct):
    labels: str = ""


_COLLECTIVE = msgspec.json.Decoder(_Collective)
_INPUTS = msgspec.json.Decoder(_Inputs)
_LABELLED = msgspec.json.Decoder(_Labelled)
_NAMED = msgspec.json.Decoder(_Named)
_STATE = msgspec.json.Decoder(_State)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class CollectiveReader:
    """Reads arguments of collectives; the same list of ranks is kept once, however often it occurs."""

    def __init__(self) -> None:
        self._ranks: dict[str, tuple[int, ...]] = {}

    def read(self, event: Event) -> tuple[CollectiveArguments | None, int]:
        """Arguments of a kernel or of the operator that launched it, and the number by which both are linked.

        Returns:
            The arguments, None if it has none; its "External id", -1 without one (old traces write the correlation).
        """
        try:
            said = _COLLECTIVE.decode(event.args)
        except _UNDECODABLE:
            return None, -1
        link = integer(said.external_id, -1) if said.external_id != said.correlation else -1
        if not said.collective:
            return None, link
        sequence = said.sequence_upper if said.sequence_upper is not None else said.sequence_lower
        ends = [integer(said.source, -1), integer(said.destination, -1)]
        arguments = CollectiveArguments(
            name=str(said.collective)[:_MOST_TEXT],
            group=str(said.group)[:_MOST_TEXT],
            sequence=integer(sequence, -1),
            elements=integer(said.elements, 0),
            group_size=integer(said.group_size, 0),
            ranks=self._ranks_of(said.ranks),
            peer=max(ends) if min(ends) < 0 else -1,
        )
        return arguments, link

    def _ranks_of(self, text: Any) -> tuple[int, ...]:
        """Ranks from "[0, 1]"; nothing from "[0, 1, ..., 127]" or anything else."""
        if not isinstance(text, str) or "." in text or len(text) > _MOST_RANKS_TEXT:
            return ()
        ranks = self._ranks.get(text)
        if ranks is None:
            ranks = self._ranks[text] = tuple(int(number) for number in re.findall(r"\d{1,9}", text))
        return ranks


def has_arguments(event: Event) -> bool:
    """Whether an event says anything about a collective."""
    return b'"Collective name"' in bytes(event.args)


def read_link(event: Event) -> int:
    """The number that a device's work shares with the call of the driver that launched it, -1 if it has none."""
    found = _CORRELATION.search(bytes(event.args))
    return int(found[1]) if found else -1


def read_direct_call(event: Event) -> CollectiveArguments | None:
    """The other side and the size of a send or receive, from its recorded inputs; None where they do not tell."""
    try:
        said = _INPUTS.decode(event.args)
        peer = integer(said.values[2], -1)
    except (*_UNDECODABLE, LookupError, TypeError):
        return None
    if peer < 0:
        return None
    return CollectiveArguments(DIRECT_CALLS[event.name], elements=_elements(said.sizes), peer_in_group=peer)


def _elements(sizes: Any) -> int:
    """Of the only tensor of the first input, 0 if unknown."""
    try:
        (shape,) = sizes[0]
        known = len(shape) <= _MOST_DIMENSIONS and all(isinstance(length, int) for length in shape)
    except (LookupError, TypeError, ValueError):
        return 0
    return max(integer(math.prod(shape), 0), 0) if known else 0


def is_unfinished(event: Event) -> bool:
    """Whether Kineto says that it cut this annotation itself when the trace was stopped."""
    if b"finished" not in bytes(event.args):
        return False
    try:
        return not _STATE.decode(event.args).finished
    except _UNDECODABLE:
        return False


def told_name(event: Event) -> str:
    """The name that a metadata event gives to its thread, "" if none."""
    try:
        return _NAMED.decode(event.args).name
    except _UNDECODABLE:
        return ""


def told_label(event: Event) -> str:
    """What a metadata event says about its process beside the name ("GPU 0"), "" for nothing."""
    try:
        return _LABELLED.decode(event.args).labels
    except _UNDECODABLE:
        return ""


def integer(value: Any, default: int) -> int:
    """`value` as a number of less than 62 bits, else `default`."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if abs(number) < 2**62 else default
