"""The sending side: queued pieces, the connections to the next neighbour, and their paths.

A piece stays known until the neighbour acknowledges it, so a connection can be dropped at any time: its pieces go to
other connections, and the receiver drops what it has already. Runs on the transport's thread.
"""

from __future__ import annotations

import collections
import errno
import selectors
import socket
import time
from collections.abc import Callable

from c4p.connections import (
    CONNECT_S,
    TRIES,
    TRY_S,
    Job,
    Neighbours,
    Outgoing,
    PendingPiece,
    close_at_once,
    kernel_waits_s,
)
from c4p.errors import C4PError, GroupBroken
from c4p.flows import KERNEL_S, Flow, Key, dead_flows, late_pieces, slow_flows
from c4p.model import Counters, NetworkPath, PathEvent, PathRecord
from c4p.path_choice import PathChoice
from c4p.ring import Piece
from c4p.wire import HEADER, Header, Kind, parse_header

#: Seconds that each other port of a path that has just failed may take to connect, and the last one.
RETRY_S, LAST_RETRY_S = 0.1, 0.2
TRUST_BYTES = 256 * 1024
_LATER = {errno.EAGAIN, errno.EINPROGRESS, errno.EWOULDBLOCK}


class Sender:
    """Connections to the next neighbour.

    Args:
        at: The ring neighbours.
        paths: The paths to the next neighbour, and the planned one of each socket.
        selector: The transport's.
        counters: The group's totals.
        finished: Called with an operation of which a piece waits no more for a connection; perhaps it is done.
        left: Called when the next neighbour has said farewell.
        fail: Called when the group cannot go on.

    Attributes:
        connections: The open connection of each socket.
        queue: Pieces that no connection has taken yet.
        unacknowledged: Pieces that the neighbour is not known to have.
        events: Paths that were left, taken again or moved.
        refused: The last attempt was refused: nobody listens there any more.
        farewell: Number of operations after which the neighbour said farewell; None before.
    """

    def __init__(
        self,
        at: Neighbours,
        paths: PathChoice,
        selector: selectors.BaseSelector,
        counters: Counters,
        finished: Callable[[Job], None],
        left: Callable[[], None],
        fail: Callable[[C4PError], None],
    ) -> None:
        self._at = at
        self._paths = paths
        self._selector = selector
        self._counters = counters
        self._finished, self._left, self._fail = finished, left, fail
        self.connections: list[Outgoing | None] = [None] * len(paths.planned)
        self.queue: collections.deque[PendingPiece] = collections.deque()
        self.unacknowledged: dict[Key, PendingPiece] = {}
        self.events: list[PathEvent] = []
        self.refused = False
        self.farewell: int | None = None
        self._pending: dict[int, Outgoing] = {}
        self._retiring: list[Outgoing] = []

    @property
    def is_busy(self) -> bool:
        """Return True if something is in flight, or a connection is being opened."""
        return bool(self.unacknowledged or self.queue or self._pending)

    @property
    def is_open(self) -> bool:
        """Return True if a connection is open."""
        return any(connection is not None and connection.is_open for connection in self.connections)

    @property
    def idle_sockets(self) -> list[socket.socket]:
        """Return the sockets of open connections on which no message is being written."""
        return [c.sock for c in self.connections if c is not None and c.is_open and c.header is None]

    def planned(self) -> list[NetworkPath]:
        """Return the planned path of each connection."""
        return list(self._paths.planned)

    def records(self) -> list[PathRecord]:
        """Return the state and totals of each socket."""
        records = []
        for index, connection in enumerate(list(self.connections)):
            if connection is None:
                records.append(PathRecord(index, 0, self._paths.current[index], 0, 0.0, "none"))
                continue
            flow = connection.flow
            state = "open" if connection.is_open else "connecting"
            record = PathRecord(index, connection.port, connection.path, flow.delivered_bytes, flow.rate, state)
            records.append(record)
        return records

    # -- pieces ---------------------------------------------------------------------------------------------------

    def enqueue(self, job: Job, pieces: list[Piece]) -> None:
        """Queue pieces of an operation."""
        for part in pieces:
            key = (job.sequence, part.number)
            piece = PendingPiece(job, key, job.operation.buffer[part.start : part.stop])
            self.unacknowledged[key] = job.unacknowledged[key] = piece
            job.queued += 1
            self.queue.append(piece)

    def deliver_no_more(self) -> None:
        """Drop all pieces, since the neighbour has all it needs."""
        while self.queue:
            self._unqueue()
        self.unacknowledged.clear()

    def forget(self) -> None:
        """Drop all pieces, since the group has failed."""
        self.unacknowledged.clear()
        self.queue.clear()

    def pump(self) -> None:
        """Give pieces to connections that have room, and late ones once more to those with nothing to do."""
        while self.queue:
            piece = self.queue[0]
            if piece.delivered:
                self._unqueue()
                continue
            length = len(piece.view)
            free = [c for c in self.connections if c is not None and c.takes_pieces and c.flow.has_room(length)]
            if not free:
                return
            self._give(min(free, key=lambda c: c.flow.outstanding_bytes / (c.flow.rate or 1e9)), piece)
            self._unqueue()
        self._send_late_again()

    def _unqueue(self) -> None:
        job = self.queue.popleft().job
        job.queued -= 1
        self._finished(job)

    def _send_late_again(self) -> None:
        idle = [c for c in self.connections if c is not None and c.takes_pieces and not c.flow.outstanding]
        if not idle or not self.unacknowledged:
            return
        busy = [c for c in self.connections if c is not None and c.flow.outstanding]
        for key in late_pieces((c.flow for c in busy), time.monotonic()):
            piece = self.unacknowledged.get(key)
            if piece is None or piece.delivered or sum(key in c.flow.outstanding for c in busy + idle) > 1:
                continue
            if not idle:
                return
            self._counters.sent_again_bytes += len(piece.view)
            self._give(idle.pop(), piece)

    def _give(self, connection: Outgoing, piece: PendingPiece) -> None:
        connection.flow.sent(piece.key, len(piece.view), time.monotonic())
        sequence, number = piece.key
        signature = piece.job.operation.signature
        header = Header(Kind.DATA, sequence, number, len(piece.view), signature)
        connection.header, connection.piece, connection.offset = memoryview(header.packed()), piece, 0
        self._write(connection)

    def _write(self, connection: Outgoing) -> None:
        header, piece = connection.header, connection.piece
        if header is None:
            self._wait_to_write(connection, False)
            return
        body = piece.view if piece is not None else memoryview(b"")
        total = HEADER.size + len(body) if piece is not None else len(header)
        while connection.offset < total:
            try:
                if piece is None:
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
        connection.header = connection.piece = None
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
        for index in range(len(self.connections)):
            self._connect(index)

    def _connect(
        self,
        index: int,
        path: NetworkPath | None = None,
        tries: int = 1,
        patience_s: tuple[float, float] = (TRY_S, CONNECT_S),
    ) -> None:
        """Open a connection for a socket. It replaces the present one as soon as it is open."""
        old = self._pending.pop(index, None)
        if old is not None:
            self._discard(old)
        path = self._paths.current[index] if path is None else path
        now = time.monotonic()
        for _ in range(8):
            port = self._paths.next_port(path)
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
                return  # unreachable at once; the next tick tries again, over another path if there is one
        else:
            return
        port = sock.getsockname()[1]
        connection = Outgoing(index, port, path, sock, Flow(f"{index}:{port}"), now, tries, *patience_s)
        self._pending[index] = connection
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
        """Send the greeting on an open connection, which then replaces the one before it."""
        index = connection.index
        self._pending.pop(index, None)
        before = self.connections[index]
        self.connections[index] = connection
        connection.is_open = True
        connection.since = time.monotonic()
        self.refused = False
        hello = Header(Kind.HELLO, piece=self._at.rank, length=len(self._at.token)).packed() + self._at.token
        connection.header, connection.piece, connection.offset = memoryview(hello), None, 0
        self._write(connection)
        if before is not None:
            why = (
                "again" if connection.path == self._paths.planned[index] and before.path != connection.path else "plan"
            )
            self._note("returned" if why == "again" else "moved", why, before, connection, 0.0)
            before.retires = True
            self._retiring.append(before)
        self._paths.arrived(index, connection.path)

    def _connect_failed(self, connection: Outgoing) -> None:
        index = connection.index
        self._pending.pop(index, None)
        self._discard(connection)
        if connection.path:
            self._paths.failed(connection.path, "dead", time.monotonic())
        if self.connections[index] is None:
            self._paths.current[index] = connection.path
            self._paths.elsewhere(index)

    def _lost(self, connection: Outgoing) -> None:
        """Handle a broken connection."""
        if self.farewell is not None or connection.retires:
            self._drop(connection)
            return
        self._leave(connection, "lost", 0.0)

    def _leave(self, connection: Outgoing, why: str, after_s: float) -> None:
        """Give up a connection: queue its pieces again and connect over another port of its path, or over another path.

        Each port has its own return path: if only that one has failed, another port of the same path works.
        """
        now = time.monotonic()
        index = connection.index
        self._paths.current[index] = connection.path
        carried = why != "slow" and connection.trusted and len(self._paths.ports.get(connection.path, ())) > 1
        if not carried:
            self._paths.leave(index, why, now)
        self._drop(connection)
        self._connect(index, patience_s=(RETRY_S, LAST_RETRY_S) if carried else (TRY_S, CONNECT_S))
        pending = self._pending.get(index)
        if carried and pending is None:  # not even begun
            self._paths.leave(index, why, now)
        self._note("left", why, connection, pending, after_s)

    def _drop(self, connection: Outgoing) -> None:
        self._discard(connection)
        connection.is_open = False
        if self.connections[connection.index] is connection:
            self.connections[connection.index] = None
        if connection in self._retiring:
            self._retiring.remove(connection)
        elsewhere = [c.flow.outstanding for c in [*self.connections, *self._retiring] if c is not None]
        for key in reversed(list(connection.flow.outstanding)):
            piece = self.unacknowledged.get(key)
            if piece is not None and not any(key in keys for keys in elsewhere):
                self.queue.appendleft(piece)
                piece.job.queued += 1
                self._counters.sent_again_bytes += len(piece.view)

    def _discard(self, connection: Outgoing) -> None:
        try:
            self._selector.unregister(connection.sock)
        except (KeyError, ValueError):
            return
        close_at_once(connection.sock)

    def _note(self, what: str, why: str, left: Outgoing, taken: Outgoing | None, after_s: float) -> None:
        path = taken.path if taken else self._paths.current[left.index]
        port = taken.port if taken else 0
        event = PathEvent(
            time.time(), what, why, left.index, left.port, left.path, port, path, after_s, left.flow.delivered_bytes
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
                self._left()
            elif header.kind is Kind.ABORT:
                self._fail(GroupBroken(payload.decode(errors="replace")))
        del pending[:at]

    def _acknowledged(self, connection: Outgoing, key: Key, now: float) -> None:
        connection.flow.acknowledged(key, now)
        if not connection.trusted and connection.flow.delivered_bytes >= TRUST_BYTES:
            connection.trusted = True
            self._paths.works(connection.path)
        piece = self.unacknowledged.pop(key, None)
        if piece is not None:
            piece.delivered = True
            piece.job.unacknowledged.pop(key, None)

    # -- time -----------------------------------------------------------------------------------------------------

    def not_seen(self, unseen_s: float, now: float) -> None:
        """Leave time in which the thread did not run out of all times."""
        for connection in [*self.connections, *self._retiring]:
            if connection is not None:
                connection.flow.not_seen(unseen_s, now)
                connection.acked_at = min(connection.acked_at + unseen_s, now)
        for pending in self._pending.values():
            pending.since = min(pending.since + unseen_s, now)

    def check_connecting(self, now: float, opens: bool) -> None:
        """Try another port or another path for connections that did not open in time.

        Args:
            now: Seconds.
            opens: Whether connections that are missing are still opened.
        """
        if self.farewell is not None:
            return
        for pending in list(self._pending.values()):
            has_another = pending.tries < TRIES and pending.path in self._paths.ports
            if has_another and now - pending.since > pending.try_s:
                self._connect(pending.index, pending.path, pending.tries + 1, (pending.try_s, pending.last_s))
            elif now - pending.since > pending.last_s:
                self._connect_failed(pending)
        for index, connection in enumerate(self.connections):
            if connection is None and index not in self._pending and opens:
                self._connect(index)
        for index, path in self._paths.due(now):
            if index not in self._pending and self.connections[index] is not None:
                self._connect(index, path)

    def check_paths(self, now: float) -> None:
        """Leave paths that are dead or slow."""
        connections = {c.flow.name: c for c in self.connections if c is not None}
        accounts = [c.flow for c in connections.values()]
        busy = [(name, connection) for name, connection in connections.items() if connection.flow.outstanding]
        unacknowledged = {name: kernel_waits_s(connection, now) >= KERNEL_S for name, connection in busy}
        verdicts = dead_flows(accounts, unacknowledged, now)
        if self._paths.known and not verdicts:
            verdicts = slow_flows(accounts, now)
        for verdict in verdicts:  # one that is slow because nothing at all is acknowledged is dead
            why = "dead" if unacknowledged.get(verdict.flow.name) else verdict.why
            self._leave(connections[verdict.flow.name], why, verdict.after_s)

    def check_retiring(self) -> None:
        """Drop connections that were replaced, once they have delivered."""
        for connection in list(self._retiring):
            if not connection.flow.outstanding and connection.header is None:
                self._drop(connection)

    def replan(self, paths: dict[NetworkPath, list[int]], planned: list[NetworkPath], all_anew: bool) -> None:
        """See `c4p.transport.Transport.move`."""
        for index in self._paths.replan(paths, planned, all_anew):
            self._connect(index, planned[index])
