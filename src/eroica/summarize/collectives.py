"""Collectives of one worker: which executions there were, of which group, with which sequence number.

NCCL kernels carry group and sequence as arguments. Gloo's spans carry only a name, on one of the group's two threads;
the Flight Recorder has group, sequence and size of each, but no times of execution. Both are in the order of the queue
of their group, so they are joined by order, and refused where names or times contradict it.

Point-to-point under gloo: `send` and `recv` run on the calling thread. The span `gloo:send` begins only after the call
has registered its buffer, and that may already wait; so the operator `c10d::send` around its beginning counts too. They
leave no Flight Recorder entry: `group_of_sends` finds the group. Whom they go to is clear in a group of two; in a
larger one the operator tells it, if its inputs were recorded.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from eroica.model.window import FlightEntry
from eroica.model.worker import ProcessGroup, axis_of
from eroica.summarize.sweep import rows_by_thread
from eroica.trace.columns import DIRECT_CALLS
from eroica.trace.table import Category, CollectiveArguments, EventTable, readable

Pairing = Literal["sequence", "order", "none"]
#: What torch's own process groups call the span of a collective that a thread of the host runs.
_SPAN = re.compile(r"^(?:gloo|mpi|ucc):\w+$")
#: Words of c10d for operations: by them spans of other backends are known, whose names only the job's groups tell.
_WORDS = frozenset(
    {
        "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
        "broadcast", "barrier", "gather", "scatter", "reduce", "send", "recv",
    }
)  # fmt: skip
#: Backends whose names end so only enqueue; the device runs the collective.
_ENQUEUES = "ccl"
POINT_TO_POINT = ("send", "recv")
#: A kernel of communication of which no more is known than that all leave it together.
EXCHANGE = "exchange"
_CLOCK_SKEW_NS = 10_000
_KERNEL_KINDS = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("all2all", "all_to_all"),
    ("notifydispatch", "barrier"),
    ("cachednotify", "barrier"),
    ("dispatch", "all_to_all"),
    ("combine", "all_to_all"),
    ("crossdevicereduce", "all_reduce"),
    ("allreduceprototype", "all_reduce"),
    ("gatherrs", "reduce_scatter"),
    ("ringreduce", "reduce_scatter"),
    ("sendrecv", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)
_KINDS = frozenset(kind for _, kind in _KERNEL_KINDS)
#: What PyTorch calls the group of all workers. It is there whether it is used or not.
_OF_ALL = "default_pg"
_Skips = Literal["yes", "no", "unknown"]


class Execution(NamedTuple):
    """One collective as this worker ran it; `row` is its row in the event table, times are wall-clock nanoseconds."""

    row: int
    name: str
    kind: str
    group: str
    start_ns: int
    end_ns: int
    sequence: int = -1
    elements: int = 0
    peer: int = -1
    paired_by: Pairing = "none"


class _Span(NamedTuple):
    """A collective's own event; `call` is the row of the operator around the beginning of a send or receive, or -1."""

    row: int
    name: str
    kind: str
    thread: int
    start_ns: int
    end_ns: int
    call: int = -1


@lru_cache(maxsize=4096)
def collective_kind(name: str) -> str:
    """Kind of a collective from what a library calls it ("_allgather_base" -> "all_gather"), else its own name."""
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for part, kind in _KERNEL_KINDS if part in plain), name)


def is_host_collective(name: str, groups: Sequence[ProcessGroup] = ()) -> bool:
    """Return whether an event is a collective that a thread of the host runs.

    Args:
        name: Of the event.
        groups: Of the job; spans of their backends count, too, if they are named in c10d's words.
    """
    if _SPAN.match(name) is not None:
        return True
    backend, _, operation = name.partition(":")
    return operation in _WORDS and not backend.endswith(_ENQUEUES) and backend in _backends(tuple(groups))


@lru_cache(maxsize=64)
def _backends(groups: tuple[ProcessGroup, ...]) -> frozenset[str]:
    """Names in what torch says of its groups: "gloo", or "cpu:gloo,cuda:nccl"."""
    return frozenset(itertools.chain.from_iterable(re.split(r"[:,]", group.backend) for group in groups))


def find_executions(
    events: EventTable,
    flight: Sequence[FlightEntry],
    groups: Sequence[ProcessGroup],
    window: tuple[int, int],
    rank: int = -1,
) -> list[Execution]:
    """All executions that touch the window, in order of start.

    Args:
        events: The trace.
        flight: The Flight Recorder's entries, oldest first.
        groups: Process groups of this worker.
        window: Its start and end, wall-clock nanoseconds; executions are clipped to it.
        rank: Global rank of this worker, which sends nothing to itself.
    """
    spans = _spans(events, groups)
    queued = [span for span in spans if span.kind not in POINT_TO_POINT]
    direct = [span for span in spans if span.kind in POINT_TO_POINT]
    sender = group_of_sends(flight, groups, window, [span.start_ns for span in direct]) if direct else None
    found = [
        *_join_flight(queued, [entry for entry in flight if not entry.is_p2p], groups, window),
        *_point_to_point(direct, [events.collectives.get(span.call) for span in direct], sender, rank),
        *_kernels(events, groups),
    ]
    begin, end = window
    clipped = (one._replace(start_ns=max(one.start_ns, begin), end_ns=min(one.end_ns, end)) for one in found)
    inside = [one for one in clipped if one.start_ns < one.end_ns]
    ordered = sorted(inside, key=lambda one: (one.start_ns, one.row))
    return _number_by_order(_without_false_numbers(ordered))


def _spans(events: EventTable, groups: Sequence[ProcessGroup]) -> list[_Span]:
    """Spans of collectives that run on host threads (those of NCCL only enqueue), sends widened to their call."""
    chosen = events.named(lambda name: is_host_collective(name, groups), Category.ANNOTATION, Category.OPERATOR)
    spans = []
    for row in np.flatnonzero(chosen).tolist():
        name = events.name_of(row)
        kind = collective_kind(name.partition(":")[2])
        times = (int(events.start_ns[row]), int(events.end_ns[row]))
        spans.append(_Span(row, name, kind, int(events.thread[row]), *times))
    return _widen(spans, events)


def _widen(spans: list[_Span], events: EventTable) -> list[_Span]:
    """A send or receive begins with the call around the beginning of its span."""
    calls = events.named(lambda name: name in DIRECT_CALLS or name == "c10d::recv_any_source_")
    calls_of = dict(rows_by_thread(events, np.flatnonzero(calls)))
    widened = []
    for span in spans:
        mine = calls_of.get(span.thread) if span.kind in POINT_TO_POINT else None
        place = -1 if mine is None else int(np.searchsorted(events.start_ns[mine], span.start_ns, side="right")) - 1
        if mine is not None and place >= 0 and events.end_ns[mine[place]] >= span.start_ns:
            widened.append(span._replace(start_ns=int(events.start_ns[mine[place]]), call=int(mine[place])))
        else:
            widened.append(span)
    return widened


# --- gloo's queues and the Flight Recorder ---


def _join_flight(
    spans: list[_Span], flight: Sequence[FlightEntry], groups: Sequence[ProcessGroup], window: tuple[int, int]
) -> list[Execution]:
    by_group: dict[str, list[FlightEntry]] = defaultdict(list)
    names = {span.name for span in spans}
    for entry in flight:
        if entry.name in names:
            by_group[entry.group].append(entry)
    by_thread: dict[int, list[_Span]] = defaultdict(list)
    for span in spans:
        by_thread[span.thread].append(span)
    served: dict[str, list[_Span]] = defaultdict(list)
    for mine in by_thread.values() if by_group else ():
        served[min(by_group, key=lambda group: _misfit(mine, by_group[group]))] += mine
    joined = [
        _join_queue(sorted(served[group], key=lambda span: span.start_ns), group, entries, window)
        for group, entries in by_group.items()
    ]
    if not joined or None in joined:
        return _unpaired(spans, groups, {entry.group for entry in flight})
    return [one for part in joined if part is not None for one in part]


def _unpaired(spans: list[_Span], groups: Sequence[ProcessGroup], recorded: set[str]) -> list[Execution]:
    """Without sequence numbers the order in the window is left, if there is only one group it could be."""
    known = {group.name for group in groups} or recorded
    group = next(iter(known)) if len(known) == 1 else ""
    pairing: Pairing = "order" if len(known) == 1 else "none"
    return [_execution(span, group)._replace(paired_by=pairing) for span in spans]


def _misfit(spans: list[_Span], entries: list[FlightEntry]) -> tuple[float, float]:
    """Measure how badly a thread's spans fit a queue: the share without an own entry, then the median delay."""
    created: dict[str, list[int]] = defaultdict(list)
    for entry in entries:
        created[entry.name].append(entry.created_ns)
    delays: list[int] = []
    used: set[tuple[str, int]] = set()
    for span in spans:
        place = bisect_right(created[span.name], span.start_ns + _CLOCK_SKEW_NS) - 1
        if place >= 0 and (span.name, place) not in used:
            used.add((span.name, place))
            delays.append(span.start_ns - created[span.name][place])
    return 1.0 - len(used) / len(spans), float(np.median(delays)) if delays else 0.0


def _join_queue(
    spans: list[_Span], group: str, entries: list[FlightEntry], window: tuple[int, int]
) -> list[Execution] | None:
    """A group's spans with its entries, None if names or times contradict.

    The ring of the recorder may have lost the oldest entries: spans before its first one stay without a number.
    """
    early = sum(span.start_ns + _CLOCK_SKEW_NS < entries[0].created_ns for span in spans)
    rest = spans[early:]
    offset = _offset(rest, entries, window)
    if offset is None:
        return None
    pairs = zip(rest, entries[offset:], strict=False)
    return [
        *(_execution(span, group) for span in spans[:early]),
        *(_execution(span, group, one) for span, one in pairs),
    ]


def _offset(spans: list[_Span], entries: list[FlightEntry], window: tuple[int, int]) -> int | None:
    """Number of the entry that belongs to the first span: that of the window's start if it fits, else the latest."""
    count, spare = len(spans), len(entries) - len(spans)
    names = [span.name for span in spans]
    start = np.array([span.start_ns for span in spans], dtype=np.int64) + _CLOCK_SKEW_NS
    created = np.array([entry.created_ns for entry in entries], dtype=np.int64)
    first = int(np.searchsorted(created, window[0], side="left"))
    offsets: list[int] = [min(first, spare), *range(spare, -1, -1)] if spare >= 0 else []
    for offset in offsets:
        is_possible = not np.any(created[offset : offset + count] > start)
        if is_possible and all(one.name == name for one, name in zip(entries[offset:], names, strict=False)):
            return offset
    return None


def _execution(span: _Span, group: str, entry: FlightEntry | None = None) -> Execution:
    plain = Execution(span.row, span.name, span.kind, group, span.start_ns, span.end_ns)
    if entry is None:
        return plain
    return plain._replace(sequence=entry.sequence, elements=entry.elements, paired_by="sequence")


# --- point-to-point and kernels ---


def _point_to_point(
    spans: list[_Span], said: Sequence[CollectiveArguments | None], group: ProcessGroup | None, rank: int
) -> list[Execution]:
    """Lay out sends and receives as executions: their order pairs them with the other side's, if that is known.

    Args:
        spans: Theirs.
        said: What the call of each says.
        group: Theirs, as far as it is known. It is another one if a call names somebody who is not in it, or the worker
            itself.
        rank: Global rank of this worker.
    """
    told = [one.peer_in_group for one in said if one is not None]
    if group is None or not all(0 <= peer < len(group.ranks) and group.ranks[peer] != rank for peer in told):
        return [_execution(span, "") for span in spans]
    plain: Pairing = "order" if len(group.ranks) == 2 else "none"
    found = []
    for span, one in zip(spans, said, strict=True):
        execution = _execution(span, group.name)
        if one is None:
            found.append(execution._replace(paired_by=plain))
        else:
            peer = group.ranks[one.peer_in_group]
            found.append(execution._replace(paired_by="order", peer=peer, elements=one.elements))
    return found


def _kernels(events: EventTable, groups: Sequence[ProcessGroup]) -> list[Execution]:
    rows = np.flatnonzero(events.communication(Category.KERNEL))
    only = groups[0].name if len(groups) == 1 else ""
    # a group has a stream of its own: kernels that name no group are of the only one known if they run on the busiest
    streams, counts = np.unique(events.thread[rows], return_counts=True)
    own_stream = int(streams[np.argmax(counts)]) if len(streams) else -1
    found = []
    for row in rows.tolist():
        name = readable(events.name_of(row))
        said = events.collectives.get(row)
        group = said.group if said is not None and said.group else only if events.thread[row] == own_stream else ""
        sequence = said.sequence if said is not None else -1
        kind = collective_kind(said.name if said is not None else name)
        found.append(
            Execution(
                row=row,
                name=name,
                kind=kind if kind in _KINDS else EXCHANGE,
                group=group,
                start_ns=int(events.start_ns[row]),
                end_ns=int(events.end_ns[row]),
                sequence=sequence,
                elements=said.elements if said is not None else 0,
                peer=said.peer if said is not None else -1,
                paired_by="sequence" if group and sequence >= 0 else "order" if group else "none",
            )
        )
    return found


def _without_false_numbers(executions: list[Execution]) -> list[Execution]:
    """Numbers of kernels that do not rise within group and kind are no sequence numbers: order is left."""
    latest: dict[tuple[str, str], int] = {}
    false: set[tuple[str, str]] = set()
    for one in executions:
        key = (one.group, one.kind)
        if one.paired_by == "sequence" and one.kind not in POINT_TO_POINT:
            if one.sequence <= latest.get(key, -1):
                false.add(key)
            latest[key] = one.sequence
    if not false:
        return executions
    return [
        one._replace(paired_by="order") if one.paired_by == "sequence" and (one.group, one.kind) in false else one
        for one in executions
    ]


def _number_by_order(executions: list[Execution]) -> list[Execution]:
    """Number the executions that only their order tells apart, per group and kind."""
    counters: dict[tuple[str, str], int] = defaultdict(int)
    numbered = []
    for one in executions:
        if one.paired_by != "order":
            numbered.append(one)
            continue
        key = (one.group, one.kind)
        numbered.append(one._replace(sequence=counters[key]))
        counters[key] += 1
    return numbered


def group_of_sends(
    flight: Sequence[FlightEntry], groups: Sequence[ProcessGroup], window: tuple[int, int], sends_ns: Sequence[int]
) -> ProcessGroup | None:
    """The only group of a worker that can hold its sends and receives; None if it could be any of several.

    Sends and receives leave no entry in the Flight Recorder, but the operation number of their group skips for each. If
    it skips in one group, that is it. Else it is among those in which nothing tells that it does not skip: the one
    described as a pipeline, or the one that was made for the purpose, since nothing else was ever recorded in it. The
    group of all workers is there anyway.

    Args:
        flight: The recorder's entries.
        groups: Process groups of this worker.
        window: Its start and end, wall-clock nanoseconds.
        sends_ns: When the sends and receives began.
    """
    if len(groups) == 1:
        return groups[0]
    shared = [group for group in groups if len(group.ranks) > 1]
    skips = {group.name: _skips(flight, group, window, sends_ns) for group in shared}
    certain = [group for group in shared if skips[group.name] == "yes"]
    if certain:
        return _only(certain)
    left = [group for group in shared if skips[group.name] == "unknown"]
    described = [group for group in left if axis_of(group.description) == "stage"]
    if described or len(left) == 1:
        return _only(described or left)
    used = {entry.group for entry in flight}
    return _only([group for group in left if group.description != _OF_ALL and group.name not in used])


def _skips(
    flight: Sequence[FlightEntry], group: ProcessGroup, window: tuple[int, int], sends_ns: Sequence[int]
) -> _Skips:
    """Tell whether a group's operation numbers skip; unknown without a send between its entries."""
    mine = [
        entry
        for entry in flight
        if entry.group == group.name and entry.operation > 0 and window[0] <= entry.created_ns <= window[1]
    ]
    collectives = [entry for entry in mine if not entry.is_p2p]
    if len({entry.operation - entry.sequence for entry in collectives}) > 1:
        return "yes"
    created = [entry.created_ns for entry in collectives]
    between = bool(created) and any(min(created) < send < max(created) for send in sends_ns)
    return "no" if between else "unknown"


def _only(groups: Sequence[ProcessGroup]) -> ProcessGroup | None:
    return groups[0] if len(groups) == 1 else None
