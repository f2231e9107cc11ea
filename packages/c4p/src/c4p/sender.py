"""What a member sends: pieces that wait, connections to the next neighbour, and the ways that they take.

A piece stays known until the neighbour acknowledges it, so a connection can be dropped at any time: its pieces go to
other connections, and the receiver drops what it has already. Runs on the carrier's thread.
"""

from __future__ import annotations

import collections
import errno
import selectors
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from c4p.connections import TRIES, Job, Neighbours, Outgoing, Parcel, close_at_once, kernel_waits_s
from c4p.errors import C4PError, GroupBroken
from c4p.model import Counters, PathEvent, PathRecord, Way
from c4p.paths import KERNEL_S, Key, Path, dead_paths, late_pieces, slow_paths
from c4p.ring import Piece
from c4p.ways import Ways
from c4p.wire import HEADER, Header, Kind, parse_header

#: Where a way that has just carried fails, its other ports are tried for so long each, and the last one for so long.
RETRY_S, LAST_RETRY_S = 0.1, 0.2
TRUST_BYTES = 256 * 1024
_LATER = {errno.EAGAIN, errno.EINPROGRESS, errno.EWOULDBLOCK}


class Hooks(NamedTuple):
    """What the sender tells its carrier.

    Attributes:
        finished: A piece of this operation waits no more for a connection; perhaps it is done.
        left: The next neighbour has said farewell.
        fail: The group cannot go on.
    """

    finished: Callable[[Job], None]
    left: Callable[[], None]
    fail: Callable[[C4PError], None]


class Sender:
    """Connections to the next neighbour.

    Args:
        at: Whom to talk to.
        ways: Ways there, and the planned one of each socket.
        selector: The carrier's.
        counters: The group's totals.
        moves: Whether slow paths are left (dead ones always are).
        hooks: The carrier's.

    Attributes:
        slots: The open connection of each socket.
        queue: Pieces that no connection has taken yet.
        unacknowledged: Pieces that the neighbour is not known to have.
        events: Paths that were left, taken again or moved.
        refused: The last attempt was refused: nobody listens there any more.
        farewell: Number of operations after which the neighbour said farewell; None before.
    """

    def __init__(
        self,
        at: Neighbours,
        ways: Ways,
        selector: selectors.BaseSelector,
        counters: Counters,
        moves: bool,
        hooks: Hooks,
    ) -> None:
        self._at = at
        self._ways = ways
        self._selector = selector
        self._counters = counters
        self._moves = moves
        self._hooks = hooks
        self.slots: list[Outgoing | None] = [None] * len(ways.planned)
        self.queue: collections.deque[Parcel] = collections.deque()
        self.unacknowledged: dict[Key, Parcel] = {}
        self.events: list[PathEvent] = []
        self.refused = False
        self.farewell: int | None = None
        self._pending: dict[int, Outgoing] = {}
        self._retiring: list[Outgoing] = []

    @property
    def is_busy(self) -> bool:
        """Something is under way, or a connection is being opened."""
        return bool(self.unacknowledged or self.queue or self._pending)

    @property
    def is_open(self) -> bool:
        """Some connection stands."""
        return any(connection is not None and connection.is_open for connection in self.slots)

    @property
    def idle_sockets(self) -> list[socket.socket]:
        """Sockets of open connections on which no message has been begun."""
        return [c.sock for c in self.slots if c is not None and c.is_open and c.header is None]

    def planned(self) -> list[Way]:
        """The planned way of each connection."""
        return list(self._ways.planned)

    def records(self) -> list[PathRecord]:
        """What each socket has done."""
        records = []
        for slot, connection in enumerate(list(self.slots)):
            if connection is None:
                records.append(PathRecord(slot, 0, self._ways.now_at[slot], 0, 0.0, "none"))
                continue
            path = connection.path
            state = "open" if connection.is_open else "connecting"
            record = PathRecord(slot, connection.port, connection.way, path.delivered_bytes, path.rate, state)
            records.append(record)
        return records

    # -- pieces ---------------------------------------------------------------------------------------------------

    def enqueue(self, job: Job, pieces: list[Piece]) -> None:
        """Pieces of an operation may be sent."""
        for piece in pieces:
            key = (job.sequence, piece.number)
            parcel = Parcel(job, key, job.operation.buffer[piece.start : piece.stop])
            self.unacknowledged[key] = job.unacknowledged[key] = parcel
            job.queued += 1
            self.queue.append(parcel)

    def deliver_no_more(self) -> None:
        """The neighbour has all it needs: nothing has to be delivered any more."""
        while self.queue:
            self._unqueue()
        self.unacknowledged.clear()

    def forget(self) -> None:
        """The group has failed: nothing is sent any more."""
        self.unacknowledged.clear()
        self.queue.clear()

    def count_open(self) -> None:
        """Add what open connections have delivered to the totals by way; at the end."""
        for connection in self.slots:
            if connection is not None:
                self._count(connection)

    def pump(self) -> None:
        """Give pieces to connections that have room, and late ones once more to those with nothing to do."""
        while self.queue:
            parcel = self.queue[0]
            if parcel.delivered:
                self._unqueue()
                continue
            length = len(parcel.view)
            free = [c for c in self.slots if c is not None and c.takes_pieces and c.path.has_room(length)]
            if not free:
                return
            self._give(min(free, key=lambda c: c.path.outstanding_bytes / (c.path.rate or 1e9)), parcel)
            self._unqueue()
        self._send_late_again()

    def _unqueue(self) -> None:
        job = self.queue.popleft().job
        job.queued -= 1
        self._hooks.finished(job)

    def _send_late_again(self) -> None:
        idle = [c for c in self.slots if c is not None and c.takes_pieces and not c.path.outstanding]
        if not idle or not self.unacknowledged:
            return
        busy = [c for c in self.slots if c is not None and c.path.outstanding]
        for key in late_pieces((c.path for c in busy), time.monotonic()):
            parcel = self.unacknowledged.get(key)
            if parcel is None or parcel.delivered or sum(key in c.path.outstanding for c in busy + idle) > 1:
                continue
            if not idle:
                return
            self._counters.sent_again_bytes += len(parcel.view)
            self._give(idle.pop(), parcel)

    def _give(self, connection: Outgoing, parcel: Parcel) -> None:
        connection.path.sent(parcel.key, len(parcel.view), time.monotonic())
        sequence, number = parcel.key
        signature = parcel.job.operation.signature
        header = Header(Kind.DATA, sequence, number, len(parcel.view), signature)
        connection.header, connection.parcel, connection.offset = memoryview(header.packed()), parcel, 0
        self._write(connection)

    def _write(self, connection: Outgoing) -> None:
        header, parcel = connection.header, connection.parcel
        if header is None:
            self._wait_to_write(connection, False)
            return
        body = parcel.view if parcel is not None else memoryview(b"")
        total = HEADER.size + len(body) if parcel is not None else len(header)
        while connection.offset < total:
            try:
                if parcel is None:
                    connection.offset += connection.sock.send(header[connection.offset :])
                elif connection.offset < HEADER.size:
                    connection.offset += connection.sock.sendmsg([header[connection.offset :], body])
                else:
                    connection.offset += connection.sock.send(body[connection.offset - HEADER.size :])
            except BlockingIOError:
                self._wait_to_write(connection, True)
                return
            except OSError:
                self._lost(connection)
                return
        self._counters.sent_bytes += len(body)
        connection.header = connection.parcel = None
        self._wait_to_write(connection, False)

    def _wait_to_write(self, connection: Outgoing, waits: bool) -> None:
        if connection.waits_to_write == waits:
            return
        connection.waits_to_write = waits
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
        self._selector.modify(connection.sock, events, lambda mask: self._on_outgoing(connection, mask))

    # -- connections ----------------------------------------------------------------------------------------------

    def open_all(self) -> None:
        """Open a connection for each socket."""
        for slot in range(len(self.slots)):
            self._connect(slot)

    def _connect(self, slot: int, way: Way | None = None, tries: int = 1) -> None:
        """Open a connection for a slot; it replaces the slot's present one as soon as it stands."""
        old = self._pending.pop(slot, None)
        if old is not None:
            self._discard(old)
        way = self._ways.now_at[slot] if way is None else way
        now = time.monotonic()
        for _ in range(8):
            port = self._ways.next_port(way)
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((self._at.address, port))
                code = sock.connect_ex(self._at.next_address)
            except OSError as error:
                code = error.errno or errno.EIO
            if code == 0 or code in _LATER:
                break
            sock.close()
            if code not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                return  # unreachable at once; the next tick tries again, elsewhere where there is a choice
        else:
            return
        port = sock.getsockname()[1]
        connection = Outgoing(slot, port, way, sock, Path(f"{slot}:{port}"), now, tries)
        self._pending[slot] = connection
        events = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(sock, events, lambda mask: self._on_outgoing(connection, mask))

    def _on_outgoing(self, connection: Outgoing, mask: int) -> None:
        if not connection.is_open:
            code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.refused = code == errno.ECONNREFUSED
                self._connect_failed(connection)
                return
            if not mask & selectors.EVENT_WRITE:
                return
            self._stands(connection)
        if mask & selectors.EVENT_READ:
            self._read_acknowledgements(connection)
        if mask & selectors.EVENT_WRITE and connection.is_open:
            self._write(connection)

    def _stands(self, connection: Outgoing) -> None:
        """A connection is open: it greets, and takes its slot from the one before it."""
        slot = connection.slot
        self._pending.pop(slot, None)
        before = self.slots[slot]
        self.slots[slot] = connection
        connection.is_open = True
        connection.since = time.monotonic()
        self.refused = False
        hello = Header(Kind.HELLO, piece=self._at.rank, length=len(self._at.token)).packed() + self._at.token
        connection.header, connection.parcel, connection.offset = memoryview(hello), None, 0
        self._write(connection)
        if before is not None:
            why = "again" if connection.way == self._ways.planned[slot] and before.way != connection.way else "plan"
            self._note("returned" if why == "again" else "moved", why, before, connection, 0.0)
            before.retires = True
            self._retiring.append(before)
        self._ways.arrived(slot, connection.way)

    def _connect_failed(self, connection: Outgoing) -> None:
        slot = connection.slot
        self._pending.pop(slot, None)
        self._discard(connection)
        if connection.way:
            self._ways.failed(connection.way, "dead", time.monotonic())
        if self.slots[slot] is None:
            self._ways.now_at[slot] = connection.way
            self._ways.elsewhere(slot)

    def _lost(self, connection: Outgoing) -> None:
        """A connection broke."""
        if self.farewell is not None or connection.retires:
            self._drop(connection)
            return
        self._leave(connection, "lost", 0.0)

    def _leave(self, connection: Outgoing, why: str, after_s: float) -> None:
        """Its pieces go elsewhere, and so does its slot, unless another port of the way still connects.

        Acknowledgements come back by a way of their own for each port: where that one fails, the way itself is good.
        """
        now = time.monotonic()
        slot = connection.slot
        self._ways.now_at[slot] = connection.way
        carried = why != "slow" and connection.trusted and len(self._ways.ports.get(connection.way, ())) > 1
        if not carried:
            self._ways.leave(slot, why, now)
        self._drop(connection)
        self._connect(slot)
        pending = self._pending.get(slot)
        if carried and pending is not None:
            pending.try_s, pending.last_s = RETRY_S, LAST_RETRY_S
        elif carried:  # not even begun
            self._ways.leave(slot, why, now)
        self._note("left", why, connection, pending, after_s)

    def _drop(self, connection: Outgoing) -> None:
        self._discard(connection)
        connection.is_open = False
        if self.slots[connection.slot] is connection:
            self.slots[connection.slot] = None
        if connection in self._retiring:
            self._retiring.remove(connection)
        self._count(connection)
        elsewhere = [c.path.outstanding for c in [*self.slots, *self._retiring] if c is not None]
        for key in reversed(list(connection.path.outstanding)):
            parcel = self.unacknowledged.get(key)
            if parcel is not None and not any(key in keys for keys in elsewhere):
                self.queue.appendleft(parcel)
                parcel.job.queued += 1
                self._counters.sent_again_bytes += len(parcel.view)

    def _count(self, connection: Outgoing) -> None:
        by_way = self._counters.by_way
        by_way[connection.way] = by_way.get(connection.way, 0) + connection.path.delivered_bytes

    def _discard(self, connection: Outgoing) -> None:
        try:
            self._selector.unregister(connection.sock)
        except (KeyError, ValueError):
            return
        close_at_once(connection.sock)

    def _note(self, what: str, why: str, left: Outgoing, taken: Outgoing | None, after_s: float) -> None:
        way = taken.way if taken else self._ways.now_at[left.slot]
        port = taken.port if taken else 0
        event = PathEvent(
            time.time(), what, why, left.slot, left.port, left.way, port, way, after_s, left.path.delivered_bytes
        )
        self.events.append(event)

    def _read_acknowledgements(self, connection: Outgoing) -> None:
        try:
            data = connection.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            self._lost(connection)
            return
        if not data:
            self._lost(connection)
            return
        pending = connection.incoming
        pending += data
        now = time.monotonic()
        at = 0
        while len(pending) - at >= HEADER.size:
            header = parse_header(memoryview(pending)[at : at + HEADER.size])
            if len(pending) - at < HEADER.size + header.length:
                break
            at += HEADER.size
            payload = bytes(pending[at : at + header.length])
            at += header.length
            if header.kind is Kind.ACK:
                self._acknowledged(connection, (header.sequence, header.piece), now)
            elif header.kind is Kind.BYE:
                self.farewell = header.sequence
                self._hooks.left()
            elif header.kind is Kind.ABORT:
                self._hooks.fail(GroupBroken(payload.decode(errors="replace")))
        del pending[:at]

    def _acknowledged(self, connection: Outgoing, key: Key, now: float) -> None:
        connection.path.acknowledged(key, now)
        if not connection.trusted and connection.path.delivered_bytes >= TRUST_BYTES:
            connection.trusted = True
            self._ways.works(connection.way)
        parcel = self.unacknowledged.pop(key, None)
        if parcel is not None:
            parcel.delivered = True
            parcel.job.unacknowledged.pop(key, None)

    # -- time -----------------------------------------------------------------------------------------------------

    def not_seen(self, unseen_s: float, now: float) -> None:
        """Time in which the thread did not run says nothing about any path."""
        for connection in [*self.slots, *self._retiring]:
            if connection is not None:
                connection.path.not_seen(unseen_s, now)
                connection.acked_at = min(connection.acked_at + unseen_s, now)
        for pending in self._pending.values():
            pending.since = min(pending.since + unseen_s, now)

    def check_connecting(self, now: float, opens: bool) -> None:
        """Try again, elsewhere or another port, what does not stand in time.

        Args:
            now: Seconds.
            opens: Whether connections that are missing are still opened.
        """
        if self.farewell is not None:
            return
        for pending in list(self._pending.values()):
            has_another = pending.tries < TRIES and pending.way in self._ways.ports
            if has_another and now - pending.since > pending.try_s:
                self._connect(pending.slot, pending.way, pending.tries + 1)
                again = self._pending.get(pending.slot)
                if again is not None:
                    again.try_s, again.last_s = pending.try_s, pending.last_s
            elif now - pending.since > pending.last_s:
                self._connect_failed(pending)
        for slot, connection in enumerate(self.slots):
            if connection is None and slot not in self._pending and opens:
                self._connect(slot)
        for slot, way in self._ways.due(now):
            if slot not in self._pending and self.slots[slot] is not None:
                self._connect(slot, way)

    def check_paths(self, now: float) -> None:
        """Leave paths that are dead or slow."""
        connections = {c.path.name: c for c in self.slots if c is not None}
        accounts = [c.path for c in connections.values()]
        busy = [(name, connection) for name, connection in connections.items() if connection.path.outstanding]
        unacknowledged = {name: kernel_waits_s(connection, now) >= KERNEL_S for name, connection in busy}
        verdicts = dead_paths(accounts, unacknowledged, now)
        if self._moves and self._ways.known and not verdicts:
            verdicts = slow_paths(accounts, now)
        for verdict in verdicts:  # one that is slow because nothing at all is acknowledged is dead
            why = "dead" if unacknowledged.get(verdict.path.name) else verdict.why
            self._leave(connections[verdict.path.name], why, verdict.after_s)

    def check_retiring(self) -> None:
        """Drop connections that were replaced, once they have delivered."""
        for connection in list(self._retiring):
            if not connection.path.outstanding and connection.header is None:
                self._drop(connection)

    def replan(self, ways: dict[Way, list[int]], planned: list[Way], all_anew: bool) -> None:
        """See `c4p.carrier.Carrier.move`."""
        for slot in self._ways.replan(ways, planned, all_anew):
            self._connect(slot, planned[slot])
