"""What agents tell of their workers' connections, and what is read from it.

No time in these records is compared between hosts: all are durations and rates, measured where they were seen.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

PlaceKind = Literal["connection", "sending", "receiving", "link"]
_MOST_FLOWS, _MOST_TEXT, _LONGEST_S, _MOST_BYTES, _MOST_RANK = 1024, 80, 1e7, 2**48, 200_000


class Flow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One TCP connection of a worker over the interval of the record.

    Attributes:
        worker: Global rank.
        local: Its end, "address port".
        remote: The other end.
        sent_bytes: Acknowledged by the other end.
        received_bytes: Arrived from it.
        waiting_byte_s: Bytes not yet acknowledged, times how long; divided by `sent_bytes`, the time that a byte waits.
        busy_s: Time with data under way.
        held_s: The part of it in which the receiver's window held them back.
        unsent_byte_s: The part of `waiting_byte_s` that our side has not sent yet.
        arriving_s: Time in which data was just arriving from the other end: moments at which it was, times their
            distance.
    """

    worker: int
    local: str
    remote: str
    sent_bytes: int = 0
    received_bytes: int = 0
    waiting_byte_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0
    unsent_byte_s: float = 0.0
    arriving_s: float = 0.0


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent saw of its workers' connections since it last told.

    Attributes:
        interval_s: How long that is.
        flows: Connections on which something moved or waits.
    """

    interval_s: float
    flows: tuple[Flow, ...] = ()


def read_record(data: bytes) -> HostRecord | None:
    """Return a record that came over the network, without impossible flows; None if it is none."""
    try:
        record = msgspec.msgpack.decode(data, type=HostRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not 0.0 < record.interval_s <= _LONGEST_S:
        return None
    return msgspec.structs.replace(record, flows=tuple(filter(_is_possible, record.flows[:_MOST_FLOWS])))


def _is_possible(flow: Flow) -> bool:
    seconds = (flow.busy_s, flow.held_s, flow.arriving_s)
    byte_seconds = (flow.waiting_byte_s, flow.unsent_byte_s)
    return (
        0 <= flow.worker < _MOST_RANK
        and max(len(flow.local), len(flow.remote)) <= _MOST_TEXT
        and all(0 <= number <= _MOST_BYTES for number in (flow.sent_bytes, flow.received_bytes))
        and all(0.0 <= number <= _LONGEST_S for number in seconds)
        and all(math.isfinite(number) and number >= 0.0 for number in byte_seconds)
    )


class DelayMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Host x host, sender by receiver: row i, column j is what i sends to j. Empty cells carry nothing.

    Attributes:
        hosts: Names, in the order of rows and columns.
        delay_s: Mean time that a byte waits from the sender's write to its acknowledgement; None without traffic.
        bytes_per_s: Sent.
        busy: Share of time with data under way on the busiest connection, 0-1.
        held: Share of time in which the receiver's window held it back, 0-1.
        usual_s: `delay_s` in the job's healthy past; None where unknown.
        unsent: Share of the waiting bytes that the sender has not sent yet, 0-1.
        arriving: Share of time in which data was just arriving, as the receiver sees it, 0-1.
    """

    hosts: tuple[str, ...]
    delay_s: tuple[tuple[float | None, ...], ...]
    bytes_per_s: tuple[tuple[float, ...], ...]
    busy: tuple[tuple[float, ...], ...]
    held: tuple[tuple[float, ...], ...]
    usual_s: tuple[tuple[float | None, ...], ...] = ()
    arriving: tuple[tuple[float, ...], ...] = ()
    unsent: tuple[tuple[float, ...], ...] = ()


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where it is.

    Attributes:
        kind: A connection between two hosts, one direction of a host's link, or both of them.
        hosts: The host; of a connection sender and receiver.
        instead: What it may be as well, in words, where the job's traffic cannot tell: a host that sends to one other
            only has no second cell in its row.
    """

    kind: PlaceKind
    hosts: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """The field `communication` of a verdict.

    Attributes:
        kind: The class.
        place: Where; the first place where there are several.
        further: The other ones.
        matrix: The delays that it was read from.
    """

    place: Place
    kind: Literal["communication-slow"] = "communication-slow"
    further: tuple[Place, ...] = ()
    matrix: DelayMatrix | None = None


Action = Literal["isolate-worker", "isolate-host", "avoid-path"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One order.

    Attributes:
        job: Name of the job.
        order: Counts from 1 in a job.
        action: Leave out these workers, or these hosts; or use another way between (or to) these hosts.
        workers: Global ranks that are named; empty where the place is a way.
        hosts: Hosts that are named; of a connection sender and receiver.
        restart: The job stands still: start it again from its last checkpoint. Else it goes on, only slower.
        confidence: Of the verdict, 0-1.
        cause: Slug in the catalog.
        found_by: What the verdict rests on.
        window: Its number; its record lies in windows/<number>/verdict.json of the run directory.
        summary: Its sentence.
        at: When the order was given, UTC, ISO 8601.
    """

    job: str
    order: int
    action: Action
    workers: tuple[int, ...]
    hosts: tuple[str, ...]
    restart: bool
    confidence: float
    cause: str
    found_by: str
    window: int
    summary: str
    at: str
    schema_version: int = 1
