"""Keep events as columns, piece by piece: 24 bytes an event, each text once.

What events say in their arguments (collectives, names of threads, unfinished annotations) is read here, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.trace.chunks import NO_LENGTH, UNREADABLE, Event, counted
from eroica.trace.table import Category, CollectiveArguments, category_of, is_collective_kernel

_MOST_NAME = 2_000
_MOST_NAME_TEXT = 200_000_000
_MOST_PLACES = 100_000
_MOST_COLLECTIVES = 1_000_000
_MOST_OPEN = 100_000
_MOST_US = 4e15
_OPEN_US = -0.001
_OTHER_PLACE = ("", -1, -1)
_MARKS = frozenset("iIR")
_NOTHING = frozenset(("", UNREADABLE))
_RARE = frozenset("MBE") | _MARKS
_COMMUNICATION = "record_param_comms"
_LINKED = (Category.KERNEL, Category.MEMORY, Category.RUNTIME)

_get_name = attrgetter("name")
_get_place = attrgetter("cat", "pid", "tid")
_get_start = attrgetter("ts")
_get_length = attrgetter("dur")

Place = tuple[str, "int | str", "int | str"]
#: Calls with (tensors, group, rank of the other side in the group, tag).
DIRECT_CALLS = {"c10d::send": "send", "c10d::recv_": "recv"}
_CORRELATION = re.compile(rb'"correlation"\s*:\s*(\d{1,18})\b')
_MOST_TEXT = 500
_MOST_DIMENSIONS = 64
_MOST_RANKS_TEXT = 10_000_000


class Names(dict[str, int]):
    """Numbers for names in order of appearance, given where one is missing; long names are cut.

    Attributes:
        flags: 1 for each name of communication, by number.
        size: Bytes that they take, about.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flags = bytearray()
        self.size = 0

    def __missing__(self, name: str) -> int:
        """A number for a new name."""
        if len(name) > _MOST_NAME:
            return self[name[:_MOST_NAME]]
        number = self[name] = len(self)
        self.size += len(name) + 100
        self.flags.append(name == _COMMUNICATION or name in DIRECT_CALLS or is_collective_kernel(name))
        return number


class Places(dict[Place, int]):
    """Numbers for (category, process, thread) as the events have them.

    Attributes:
        kinds: Category by number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kinds = bytearray()

    def __missing__(self, place: Place) -> int:
        """A number for a new place."""
        if any(len(part) > _MOST_NAME for part in place if isinstance(part, str)):
            return self[_OTHER_PLACE]
        number = self[place] = len(self)
        self.kinds.append(category_of(place[0], place[1]))
        return number


@dataclass(eq=False)
class Columns:
    """What is kept of the events while a trace is read. An event that is open has a length of -1 ns.

    Attributes:
        limit: Most events.
        links: Keep by which number a device's work and the call that launched it are linked.
        names: Text table.
        places: (category, process, thread) table.
        rows: Events kept.
        seen: Objects that were read.
        nothing: Those of them without a phase, or unreadable: no events.
        overflow: A sentence where there was more than is kept, "" if there was not.
        timeless: Events left out because they had no usable time.
        negative: Events left out because they ended before they began.
        unfinished: Annotations that Kineto cut at the stop.
        last_us: Latest mark of the trace.
        processes: Process -> its name and labels.
        collectives: Row -> arguments of a collective's kernel.
        calls: Row -> arguments of the call of a send or receive.
    """

    limit: int
    links: bool = False
    names: Names = field(default_factory=Names)
    places: Places = field(default_factory=Places)
    rows: int = 0
    seen: int = 0
    nothing: int = 0
    overflow: str = ""
    timeless: int = 0
    negative: int = 0
    unfinished: int = 0
    last_us: float = -np.inf
    processes: dict[int | str, str] = field(default_factory=dict)
    collectives: dict[int, CollectiveArguments] = field(default_factory=dict)
    calls: dict[int, CollectiveArguments] = field(default_factory=dict)
    _pieces: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]] = field(
        default_factory=list
    )
    _links: list[NDArray[np.int64]] = field(default_factory=list)
    _open: dict[tuple[int | str, int | str], list[Event]] = field(default_factory=dict)
    _open_count: int = 0
    _ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _calls: dict[int, CollectiveArguments] = field(default_factory=dict)

    def add(self, events: list[Event]) -> None:
        """Keep the complete events of a piece, and what its metadata say."""
        rows = [event for event in events if event.ph == "X"]
        rare: list[Event] = []
        self.seen += len(events)
        if len(rows) < len(events):
            rare = [event for event in events if event.ph in _RARE]
            self.nothing += sum([event.ph in _NOTHING for event in events])
        if rare:
            marks = [event.ts for event in rare if event.ph in _MARKS and event.ts < _MOST_US]
            self.last_us = max(self.last_us, max(marks, default=-np.inf))
            rows += self._read_rare([event for event in rare if event.ph not in _MARKS])
        if rows:
            self._append(rows)
        if self.seen > self.limit:
            self.overflow = f"only the first {self.limit:,} events were kept (max_trace_events)"
        elif self._is_full():
            self.overflow = (
                f"only the first {self.rows:,} events were kept: they have too many names, threads or collectives, or "
                "too many are open at once"
            )

    def _is_full(self) -> bool:
        """Return whether something else than events has become too much for memory."""
        collectives = max(len(self.collectives), len(self.calls), len(self._calls))
        return (
            self.names.size > _MOST_NAME_TEXT
            or len(self.places) > _MOST_PLACES
            or collectives > _MOST_COLLECTIVES
            or self._open_count > _MOST_OPEN
        )

    def losses(self) -> list[str]:
        """One sentence each about what was not kept, for all but times far from the others."""
        told = (
            (self.overflow, self.overflow),
            (self.timeless, f"left out: {counted(self.timeless, 'event')} without a usable time"),
            (self.negative, f"left out: {counted(self.negative, 'event')} that would have ended before they began"),
        )
        return [sentence for happened, sentence in told if happened]

    def _append(self, events: list[Event]) -> None:
        events = events[: self.limit - self.rows]
        count = len(events)
        name = np.fromiter(map(self.names.__getitem__, map(_get_name, events)), np.int32, count)
        place = np.fromiter(map(self.places.__getitem__, map(_get_place, events)), np.int32, count)
        start_us = np.fromiter(map(_get_start, events), np.float64, count)
        length_us = np.fromiter(map(_get_length, events), np.float64, count)
        is_open = length_us == NO_LENGTH
        length_us[is_open] = _OPEN_US
        usable = (np.abs(start_us) < _MOST_US) & (length_us < _MOST_US)
        possible = usable & ((length_us >= 0) | is_open)
        if not possible.all():
            self.timeless += int(count - usable.sum())
            self.negative += int(usable.sum() - possible.sum())
            chosen = np.flatnonzero(possible)
            events = [events[row] for row in chosen.tolist()]
            name, place, start_us, length_us = name[chosen], place[chosen], start_us[chosen], length_us[chosen]
        self._read_arguments(events, name, place)
        if self.links:
            self._links.append(self._read_links(events, place))
        self._pieces.append((name, place, to_ns(start_us), to_ns(length_us)))
        self.rows += len(events)

    def _read_arguments(self, events: list[Event], name: NDArray[np.int32], place: NDArray[np.int32]) -> None:
        kind = np.frombuffer(self.places.kinds, dtype=np.int8)[place]
        wanted = np.frombuffer(self.names.flags, dtype=np.bool_)[name]
        for row in np.flatnonzero(wanted & ((kind == Category.KERNEL) | (kind == Category.OPERATOR))).tolist():
            self._read_collective(events[row], int(kind[row]), self.rows + row)
        for row in np.flatnonzero(kind == Category.ANNOTATION).tolist():
            event = events[row]
            self.unfinished += b"finished" in bytes(event.args) and said(event).finished is False

    def _read_links(self, events: list[Event], place: NDArray[np.int32]) -> NDArray[np.int64]:
        """Numbers of what runs on a device and of calls of its driver, -1 for others. int64 [events]."""
        kind = np.frombuffer(self.places.kinds, dtype=np.int8)[place]
        link = np.full(len(events), -1, dtype=np.int64)
        for row in np.flatnonzero(np.isin(kind, _LINKED)).tolist():
            found = _CORRELATION.search(bytes(events[row].args))
            link[row] = int(found[1]) if found else -1
        return link

    def take_links(self) -> NDArray[np.int64]:
        """By which number each event is linked, -1 if by none; empty where that was not read; once."""
        pieces, self._links = self._links, []
        return np.concatenate([np.empty(0, dtype=np.int64), *pieces])

    def _read_collective(self, event: Event, kind: int, row: int) -> None:
        """Arguments of a kernel, or of the call that launched it; calls come before the kernels in a file."""
        if event.name in DIRECT_CALLS:
            arguments = read_direct_call(event)
            if arguments is not None:
                self.calls[row] = arguments
            return
        if not (self._calls or b'"Collective name"' in bytes(event.args)):
            return
        arguments, link = self._told(event)
        if kind == Category.KERNEL:
            arguments = arguments or self._calls.get(link)
            if arguments is not None:
                self.collectives[row] = arguments
        elif event.name == _COMMUNICATION and arguments is not None and link >= 0:
            self._calls[link] = arguments

    def _told(self, event: Event) -> tuple[CollectiveArguments | None, int]:
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
        """Ranks from "[0, 1]", each list kept once; nothing from "[0, 1, ..., 127]" or anything else."""
        if not isinstance(text, str) or "." in text or len(text) > _MOST_RANKS_TEXT:
            return ()
        if text not in self._ranks:
            self._ranks[text] = tuple(int(number) for number in re.findall(r"\d{1,9}", text))
        return self._ranks[text]

    def take(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Name, place, start (before the base is added) and length (-1: open) of all events, in nanoseconds; once."""
        pieces, self._pieces = self._pieces, []
        columns = list(zip(*pieces, strict=True)) or [(), (), (), ()]
        pieces.clear()
        types = (np.int32, np.int32, np.int64, np.int64)
        joined = []
        for kind in types:
            parts = columns.pop(0)
            joined.append(np.concatenate([np.empty(0, dtype=kind), *parts]))
            del parts
        return joined[0], joined[1], joined[2], joined[3]

    # --- metadata, marks, and events of two halves ---

    def _read_rare(self, events: Iterable[Event]) -> list[Event]:
        """What is no complete event: names of threads, marks, begins and ends; the completed ones of the latter."""
        completed = []
        for event in events:
            if event.ph == "M":
                self._name_process(event)
            elif event.ph == "B":
                self._open.setdefault((event.pid, event.tid), []).append(event)
                self._open_count += 1
            elif event.ph == "E" and (begun := self._open.get((event.pid, event.tid))):
                self._open_count -= 1
                first = begun.pop()
                first.dur = event.ts - first.ts
                completed.append(first)
        return completed

    def _name_process(self, event: Event) -> None:
        if event.name in ("process_name", "process_labels") and len(self.processes) < _MOST_PLACES:
            told = said(event).labels if event.name == "process_labels" else said(event).name
            before = self.processes.get(event.pid, "")
            if isinstance(told, str):
                self.processes[event.pid] = " | ".join(filter(None, (before, told)))[:_MOST_NAME]

    def close_open(self) -> None:
        """Begins without an end are events that were still open when the trace stopped."""
        left = [event for begun in self._open.values() for event in begun]
        self._open.clear()
        if left:
            self._append(left)


def to_ns(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Microseconds as whole nanoseconds, without losing what float64 could hold (1.7e15 µs times 1000 it cannot)."""
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000.0).astype(np.int64)


def thread_number(text: int | str) -> int:
    """Number of a thread or stream: 7 for 7, "7" and "stream 7"; -1 for what has none ("PyTorch Profiler")."""
    if isinstance(text, str):
        text = text.removeprefix("stream ")
    return integer(text, -1)


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


class _Said(msgspec.Struct):
    finished: Any = True
    name: Any = ""
    labels: Any = ""


_COLLECTIVE = msgspec.json.Decoder(_Collective)
_INPUTS = msgspec.json.Decoder(_Inputs)
_SAID = msgspec.json.Decoder(_Said)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


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


def said(event: Event) -> _Said:
    """What an annotation or metadata event says of itself; Kineto marks what it cut at the stop as not finished."""
    try:
        return _SAID.decode(event.args)
    except _UNDECODABLE:
        return _Said()


def integer(value: Any, default: int) -> int:
    """`value` as a number of less than 62 bits, else `default`."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if abs(number) < 2**62 else default
