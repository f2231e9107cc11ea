"""Records that the modules of this package share."""

from __future__ import annotations

from dataclasses import dataclass

#: A path from host to host: the address of the router at each hop. Empty: unknown, the kernel chooses.
NetworkPath = tuple[str, ...]
UNKNOWN: NetworkPath = ()


@dataclass(frozen=True, slots=True)
class PathRecord:
    """State and totals of one socket to the next neighbour.

    Attributes:
        index: Number of the socket, from 0.
        port: Source port.
        path: Routers on the path; empty where unknown.
        delivered_bytes: Acknowledged by the neighbour since this connection was opened.
        rate: Bytes a second while there was something to deliver.
        state: "open", "connecting" or "none".
    """

    index: int
    port: int
    path: NetworkPath
    delivered_bytes: int
    rate: float
    state: str


@dataclass(frozen=True, slots=True)
class PathEvent:
    """A connection that left its path or returned to it.

    Attributes:
        time: Seconds since the epoch.
        what: "left" or "returned" or "moved" (by the planner).
        why: "dead", "slow", "lost" (the connection broke), "plan" or "again".
        index: Number of the socket.
        port: Source port that was left.
        path: NetworkPath that was left.
        to_port: Source port that is taken instead.
        to_path: NetworkPath that is taken instead.
        after_s: Seconds without progress before the decision.
        delivered_bytes: What the neighbour had acknowledged on the connection that was left.
    """

    time: float
    what: str
    why: str
    index: int
    port: int
    path: NetworkPath
    to_port: int
    to_path: NetworkPath
    after_s: float
    delivered_bytes: int = 0


@dataclass(slots=True)
class Counters:
    """Totals of one member, bytes and pieces."""

    sent_bytes: int = 0
    received_bytes: int = 0
    sent_again_bytes: int = 0
    duplicates: int = 0
