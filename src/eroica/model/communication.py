"""Communication as it is watched all the time: what a host's agent tells of it once a second, and what is read from it.

Three layers, after C4 (arXiv 2406.04594): communicators are `ProcessGroup`, operations `GroupCount`, transport `Flow`.
No time in these records is compared between hosts: all are durations and rates, measured where they were seen.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from eroica.model.worker import ProcessGroup

CommunicationClass = Literal[
    "communication-hang", "non-communication-hang", "communication-slow", "non-communication-slow", "both-slow"
]
PlaceKind = Literal["worker", "host", "connection", "sending", "receiving", "link"]


class GroupCount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far a worker is in one process group.

    Attributes:
        group: torch's name of the group, "#" and its number while the name is not known.
        entered: Number of the last collective entered, -1 for none.
        completed: Number of the last one completed, -1 for none.
        waits_in: Kind of the one that has been open for a while, as torch calls it; empty while nobody asked.
        before: How many like it the worker's recorder holds from before; -1 while nobody asked.
    """

    group: str
    entered: int = -1
    completed: int = -1
    waits_in: str = ""
    before: int = -1


class Flow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One TCP connection of a worker over the interval of the report.

    Attributes:
        worker: Global rank.
        local: Its end, "address port".
        remote: The other end.
        sent_bytes: Acknowledged by the other end.
        received_bytes: Arrived from it.
        waiting_byte_s: Bytes not yet acknowledged, times how long; divided by `sent_bytes`, the time that a byte waits.
        busy_s: Time with data under way.
        held_s: The part of it in which the receiver's window held them back.
        buffer_s: The part in which our send buffer did.
        rtt_s: Mean smoothed round trip while data moved; 0 if none did.
        unsent_byte_s: The part of them that our side has not sent yet.
        arriving_s: Time in which data was just arriving from the other end: moments at which it was, times their
            distance.
        retransmits: Segments sent again.
        queued_bytes: Not acknowledged at the end of the interval.
        unread_bytes: Arrived and not read by the process at the end of the interval.
    """

    worker: int
    local: str
    remote: str
    sent_bytes: int = 0
    received_bytes: int = 0
    waiting_byte_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0
    buffer_s: float = 0.0
    rtt_s: float = 0.0
    unsent_byte_s: float = 0.0
    arriving_s: float = 0.0
    retransmits: int = 0
    queued_bytes: int = 0
    unread_bytes: int = 0


class WorkerOperations(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One worker's collectives and process over the interval of the report.

    Attributes:
        worker: Global rank.
        asked: Questions put to it.
        answered: Moments at which it told its counters.
        inside: Those of them at which a collective of any group was open.
        counts: Its counters at the last of them.
        unanswered_s: How long it has owed an answer; 0 if it owes none.
        state: Kernel's letter of the process.
        cpu_s: CPU time of its training thread and its loader children so far.
        io_bytes: Read and written by that thread so far, sockets' own calls left out; None if nobody may know.
        elsewhere_cpu_s: CPU time so far of the process's other threads, and of what its children have started.
        heard: How often the agent has found that hooks had fired, so far.
    """

    worker: int
    asked: int = 0
    answered: int = 0
    inside: int = 0
    counts: tuple[GroupCount, ...] = ()
    unanswered_s: float = 0.0
    state: str = ""
    cpu_s: float = 0.0
    io_bytes: int | None = None
    elsewhere_cpu_s: float = 0.0
    heard: int = 0


class HostCommunication(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent saw of its workers' communication since it last told.

    Attributes:
        interval_s: How long that is.
        workers: Operations.
        flows: Transport; only connections that moved or have something waiting.
        groups: Communicators, named by any worker since the last report.
        readings: How often the sockets were read.
        reading_s: What that took, of one core.
    """

    interval_s: float
    workers: tuple[WorkerOperations, ...] = ()
    flows: tuple[Flow, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()
    readings: int = 0
    reading_s: float = 0.0


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
        kind: A worker, all of a host, a connection between two hosts, one direction of a host's link, or both of them.
        workers: Global ranks, of "worker" and "host".
        hosts: The host; of a connection sender and receiver.
        instead: What it may be as well, in words, where the job's traffic cannot tell: a host that sends to one other
            only has no second cell in its row.
    """

    kind: PlaceKind
    workers: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """What communication alone says of a job.

    Attributes:
        kind: The class.
        place: Where; the first place where there are several.
        further: The other ones.
        operation: The collective that waits, of a hang: "all_reduce number 12 of default_pg"; else empty.
        matrix: The delays that it was read from, None where no two hosts talk.
        own_work_ms: Global rank -> time of an iteration in no collective, milliseconds; workers that matter only.
        usual_work_ms: The same in the job's healthy past.
        waited_s: Of a hang: since when nothing moved.
        usual_operation_s: Time between two operations as long as the job moved.
    """

    kind: CommunicationClass
    place: Place
    further: tuple[Place, ...] = ()
    operation: str = ""
    matrix: DelayMatrix | None = None
    own_work_ms: dict[int, float] = {}
    usual_work_ms: dict[int, float] = {}
    waited_s: float = 0.0
    usual_operation_s: float = 0.0
