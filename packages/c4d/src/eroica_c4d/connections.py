"""Connections of a host's workers, read from the kernel all the time: what moved, what waited, how long.

Bytes that wait are looked at at random moments: their mean number, divided by the rate at which they are delivered,
is how long each of them waits (Little's law). That hardly counts the late acknowledgements of small last segments,
which busy time does. The training process is not touched.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from eroica.hardware.tcp import Connection, SocketReader

from eroica_c4d.records import Flow, HostRecord

if TYPE_CHECKING:
    from eroica.agent.roster import LocalWorker, Roster

_MOST_FLOWS = 512
#: A connection on which less moves between two findings is read only when connections are looked for.
_ACTIVE_BYTES = 2048
#: Data that arrived so short a while ago arrives now: a tick of the kernel.
_NOW_MS = 4
#: Fewer bytes since the last reading are notices.
_DATA_BYTES = 1024
#: A reading that comes late stands for no more time than this, seconds: one outlier must not be all there is.
_LONGEST_S = 0.2
#: Pauses between two readings, and between two searches for new connections, seconds. Both grow where they would take
#: more than these shares of a core.
_READ_S, _FIND_S, _CORE, _CORE_TO_FIND = 0.05, 2.0, 0.01, 0.005
_LONGEST_PAUSE_S = 1.0
#: Readings come at random moments, so that they never go in step with iterations: so much of a pause earlier or later.
_JITTER = 0.5
#: Seconds between two records.
_RECORD_S = 0.45


@dataclass
class _Under:
    """One connection since the last record."""

    worker: int
    first: Connection
    last: Connection
    at: float
    waiting_byte_s: float = 0.0
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
        self.last, self.at = one, now

    def flow(self) -> Flow | None:
        first, last = self.first, self.last
        sent, received = last.bytes_acked - first.bytes_acked, last.bytes_received - first.bytes_received
        if not (sent > 0 or received > 0 or last.queued_bytes):
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
            unsent_byte_s=self.unsent_byte_s,
            arriving_s=self.arriving_s,
        )

    def restart(self) -> None:
        self.first, self.waiting_byte_s, self.moves = self.last, 0.0, 0
        self.arriving_s = self.unsent_byte_s = 0.0


@dataclass
class Flows:
    """All connections of a host's workers, by the kernel's cookie."""

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
        flows.sort(key=lambda flow: flow.sent_bytes + flow.received_bytes + flow.waiting_byte_s, reverse=True)
        return tuple(flows[:_MOST_FLOWS])


class Watch:
    """The agent's part: reads the connections of a host's living workers.

    Args:
        roster: The host's workers.
        clock: Seconds, monotonic.
    """

    def __init__(self, roster: Roster, clock: Callable[[], float] = time.monotonic) -> None:
        self._roster = roster
        self._clock = clock
        self._flows = Flows()
        self._found_at = self._read_at = float("-inf")
        self._find_s, self._read_s = _FIND_S, _READ_S
        self._taken_at = clock()

    async def run(self) -> None:
        """Read until cancelled.

        Raises:
            OSError: The kernel does not tell of connections, or we may not ask.
        """
        reader = SocketReader()
        try:
            while True:
                try:
                    self.poll(reader, self._roster.living)
                except (OSError, ValueError):  # no answer in time, or a cut one: the next search asks anew
                    self._found_at = self._clock()
                await asyncio.sleep(_READ_S * random.uniform(1 - _JITTER, 1 + _JITTER))
        finally:
            reader.close()

    def poll(self, reader: SocketReader, workers: Sequence[LocalWorker]) -> None:
        """Read the connections, or look for new ones, if it is time.

        Raises:
            OSError: The kernel refused, or did not answer.
            ValueError: Its answer is cut short.
        """
        if not workers:
            return
        now, began = self._clock(), time.thread_time()  # what others take from us is no cost of ours
        if now - self._found_at >= self._find_s:
            found = reader.find(one.worker.pid for one in workers)
            ranks = {one.worker.pid: one.worker.global_rank for one in workers}
            stores = frozenset(int(one.reader.identity.get("master_port") or 0) for one in workers)
            self._flows.found(now, {ranks[pid]: ones for pid, ones in found.items()}, stores)
            self._found_at = self._read_at = now
            self._find_s = max(_FIND_S, (time.thread_time() - began) / _CORE_TO_FIND)
        elif now - self._read_at >= self._read_s - _READ_S * _JITTER and self._flows.active:
            self._flows.read(now, reader.again(self._flows.active))
            self._read_s = max(_READ_S, min(_LONGEST_PAUSE_S, (time.thread_time() - began) / _CORE))
            self._read_at = now

    def take(self) -> bytes:
        """Return the record since the last one; empty if that is not half a second old yet."""
        now = self._clock()
        if now - self._taken_at < _RECORD_S:
            return b""
        record = HostRecord(interval_s=now - self._taken_at, flows=self._flows.take())
        self._taken_at = now
        return msgspec.msgpack.encode(record)
