"""Connections of a host's workers from one reading of the kernel to the next: what moved, what waited, how long.

Bytes that wait are looked at at random moments: their mean number, divided by the rate at which they are delivered,
is how long each of them waits (Little's law). That hardly counts the late acknowledgements of small last segments,
which busy time does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eroica.hardware.tcp import Connection
from eroica.model.communication import Flow

_MOST_FLOWS = 512
#: A connection on which less moves between two findings is read only when connections are looked for.
_ACTIVE_BYTES = 2048
#: Data that arrived so short a while ago arrives now: a tick of the kernel.
_NOW_MS = 4
#: Fewer bytes since the last reading are notices.
_DATA_BYTES = 1024
#: A reading that comes late stands for no more time than this, seconds: one outlier must not be all there is.
_LONGEST_S = 0.2


@dataclass
class _Under:
    """One connection since the last record."""

    worker: int
    first: Connection
    last: Connection
    at: float
    waiting_byte_s: float = 0.0
    rtt_s: float = 0.0
    moves: int = 0
    arriving_s: float = 0.0
    unsent_byte_s: float = 0.0

    def see(self, now: float, one: Connection) -> None:
        passed_s = min(max(0.0, now - self.at), _LONGEST_S)
        self.unsent_byte_s += one.unsent_bytes * passed_s
        self.waiting_byte_s += one.queued_bytes * passed_s
        if one.received_ago_ms <= _NOW_MS and one.bytes_received - self.last.bytes_received >= _DATA_BYTES:
            self.arriving_s += passed_s
        if one.bytes_acked != self.last.bytes_acked or one.bytes_received != self.last.bytes_received:
            self.moves += 1
            self.rtt_s += one.rtt_us * 1e-6
        self.last, self.at = one, now

    def flow(self) -> Flow | None:
        first, last = self.first, self.last
        sent, received = last.bytes_acked - first.bytes_acked, last.bytes_received - first.bytes_received
        if not (sent > 0 or received > 0 or last.queued_bytes or last.unread_bytes):
            return None
        return Flow(
            worker=self.worker,
            local=f"{last.local} {last.local_port}",
            remote=f"{last.remote} {last.remote_port}",
            sent_bytes=max(0, sent),
            received_bytes=max(0, received),
            waiting_byte_s=self.waiting_byte_s,
            busy_s=max(0, last.busy_us - first.busy_us) * 1e-6,
            held_s=max(0, last.receive_limited_us - first.receive_limited_us) * 1e-6,
            buffer_s=max(0, last.send_buffer_limited_us - first.send_buffer_limited_us) * 1e-6,
            unsent_byte_s=self.unsent_byte_s,
            arriving_s=self.arriving_s,
            rtt_s=self.rtt_s / self.moves if self.moves else 0.0,
            retransmits=max(0, last.retransmits - first.retransmits),
            queued_bytes=last.queued_bytes,
            unread_bytes=last.unread_bytes,
        )

    def restart(self) -> None:
        self.first, self.waiting_byte_s, self.rtt_s, self.moves = self.last, 0.0, 0.0, 0
        self.arriving_s = self.unsent_byte_s = 0.0


@dataclass
class Flows:
    """All connections of a host's workers, by the kernel's cookie.

    Attributes:
        left_out: Connections for which there was no room in the last record.
    """

    left_out: int = 0
    _by_cookie: dict[int, _Under] = field(default_factory=dict)
    _active: dict[int, Connection] = field(default_factory=dict)

    @property
    def active(self) -> list[Connection]:
        """Connections worth reading often: bytes moved on them lately, or wait."""
        return list(self._active.values())

    def found(self, now: float, connections: Mapping[int, Iterable[Connection]], not_ports: frozenset[int]) -> None:
        """All connections were looked for.

        Args:
            now: Seconds, monotonic.
            connections: Global rank -> its connections now.
            not_ports: Ports of torch's stores: what goes there is no communication of the training.
        """
        seen: dict[int, _Under] = {}
        active: dict[int, Connection] = {}
        for worker, ones in connections.items():
            for one in ones:
                if one.remote_port in not_ports or one.local_port in not_ports:
                    continue
                before = self._by_cookie.get(one.cookie)
                known = seen[one.cookie] = before or _Under(worker, one, one, now)
                grown = one.bytes_acked + one.bytes_received - known.last.bytes_acked - known.last.bytes_received
                if grown >= _ACTIVE_BYTES or one.queued_bytes or known.moves:
                    active[one.cookie] = one
                if before is not None:
                    known.see(now, one)
        self._by_cookie, self._active = seen, active

    def read(self, now: float, connections: Mapping[int, Connection]) -> None:
        """Active connections were read again; those that are missing are closed."""
        for cookie in list(self._active):
            one = connections.get(cookie)
            if one is None:
                self._active.pop(cookie)
            else:
                self._by_cookie[cookie].see(now, one)

    def take(self) -> tuple[Flow, ...]:
        """Return the flows since the last call; the largest, where there are too many."""
        flows = [flow for one in self._by_cookie.values() if (flow := one.flow()) is not None]
        for one in self._by_cookie.values():
            one.restart()
        flows.sort(key=lambda flow: flow.sent_bytes + flow.received_bytes + flow.queued_bytes, reverse=True)
        self.left_out = max(0, len(flows) - _MOST_FLOWS)
        return tuple(flows[:_MOST_FLOWS])
