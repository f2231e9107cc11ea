"""Records that rooms of this package hand to each other."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

#: A way from host to host: the routers that answer for its hops, in order. Empty: unknown, the kernel chooses.
Way = tuple[str, ...]
UNKNOWN: Way = ()


@dataclass(frozen=True, slots=True)
class PathRecord:
    """What one socket to the next neighbour has done.

    Attributes:
        slot: Number of the socket, from 0.
        port: Source port.
        way: Routers on the way; empty where unknown.
        delivered_bytes: Acknowledged by the neighbour since this connection was opened.
        rate: Bytes a second while there was something to deliver.
        state: "open", "connecting" or "none".
    """

    slot: int
    port: int
    way: Way
    delivered_bytes: int
    rate: float
    state: str


@dataclass(frozen=True, slots=True)
class PathEvent:
    """A path was left, or taken again.

    Attributes:
        time: Seconds since the epoch.
        what: "left" or "returned" or "moved" (by the planner).
        why: "dead", "slow", "lost" (the connection broke), "plan" or "again".
        slot: Number of the socket.
        port: Source port that was left.
        way: Way that was left.
        to_port: Source port that is taken instead.
        to_way: Way that is taken instead.
        after_s: Seconds without progress before the decision.
        delivered_bytes: What the neighbour had acknowledged on the connection that was left.
    """

    time: float
    what: str
    why: str
    slot: int
    port: int
    way: Way
    to_port: int
    to_way: Way
    after_s: float
    delivered_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(slots=True)
class Counters:
    """Totals of one member, bytes and pieces."""

    sent_bytes: int = 0
    received_bytes: int = 0
    sent_again_bytes: int = 0
    duplicates: int = 0
    operations: int = 0
    by_way: dict[Way, int] = field(default_factory=dict)
