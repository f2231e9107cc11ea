"""Receive pieces from the previous neighbour and acknowledge them at once. Runs on the transport's thread.

The member is a training process, and everybody who reaches its port can connect. So a connection has no buffer until
its first bytes are a greeting with the group's token (`c4p.admission`).
"""

from __future__ import annotations

import hmac
import selectors
import socket
import time
from collections.abc import Callable

from c4p.admission import Front
from c4p.connections import Incoming, Neighbours
from c4p.errors import C4PError, GroupBroken
from c4p.model import Counters
from c4p.wire import HEADER, Header, Kind, parse_header

_MOST_PAYLOAD = 1024 * 1024


class Receiver:
    """Connections from the previous neighbour.

    Args:
        at: The ring neighbours.
        listener: A bound socket; owned by the receiver from now on.
        selector: The transport's.
        counters: The group's totals.
        arrived: Called with a piece, its header and its bytes, which are not kept. Returns whether the group goes on.
        left: Called when the previous neighbour has said farewell; returns the same.
        fail: Called when the group cannot go on.

    Attributes:
        lost_at: When the last connection that had greeted broke, without a farewell; None while one stands.
        front: Admits connections; its `tick` has to be called.
        farewell: Number of operations after which the neighbour said farewell; None before.
    """

    def __init__(
        self,
        at: Neighbours,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        counters: Counters,
        arrived: Callable[[Header, memoryview], bool],
        left: Callable[[], bool],
        fail: Callable[[C4PError], None],
    ) -> None:
        self._at = at
        self._selector = selector
        self._counters = counters
        self._arrived, self._left, self._fail = arrived, left, fail
        self._incoming: list[Incoming] = []
        self.lost_at: float | None = None
        self.farewell: int | None = None

        def watch(sock: socket.socket, act: Callable[[], object]) -> None:
            selector.register(sock, selectors.EVENT_READ, lambda _mask: act())

        self.front = Front(listener, self._judge, HEADER.size + len(at.token), watch, selector.unregister)

    @property
    def has_greeted(self) -> bool:
        """Return True if the neighbour is connected."""
        return bool(self._incoming)

    @property
    def idle_sockets(self) -> list[socket.socket]:
        """Return the sockets of connections on which no answer is being written."""
        return [c.sock for c in self._incoming if not c.outgoing]

    def _judge(self, sock: socket.socket, words: bytes) -> None:
        """Admit or close a connection by its first bytes."""
        if not self._is_greeting(words):
            sock.close()
            return
        sock.recv(len(words))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Incoming(sock, bytearray(HEADER.size + _MOST_PAYLOAD))
        self._incoming.append(connection)
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._on_incoming(connection, mask))
        self.lost_at = None

    def _is_greeting(self, words: bytes) -> bool:
        if len(words) != HEADER.size + len(self._at.token):
            return False
        try:
            header = parse_header(words[: HEADER.size])
        except ValueError:
            return False
        is_ours = hmac.compare_digest(words[HEADER.size :], self._at.token)
        said = (header.kind, header.length, header.piece)
        return is_ours and said == (Kind.HELLO, len(self._at.token), self._at.previous_rank)

    def _on_incoming(self, connection: Incoming, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(connection)
        if mask & selectors.EVENT_READ:
            try:
                self._read(connection)
            except (OSError, ValueError):  # broken, or not of this protocol
                self._end_incoming(connection)

    def _read(self, connection: Incoming) -> None:
        view = memoryview(connection.buffer)
        for _ in range(8):  # fair to the other connections
            wanted = HEADER.size if connection.header is None else HEADER.size + connection.header.length
            try:
                count = connection.sock.recv_into(view[connection.got : wanted])
            except BlockingIOError:
                return
            if not count:
                self._end_incoming(connection)
                return
            connection.got += count
            if connection.got < wanted:
                continue
            if connection.header is None:
                header = parse_header(view[: HEADER.size])
                if header.length > _MOST_PAYLOAD or header.kind is Kind.HELLO:
                    raise ValueError("not a message of this protocol")
                connection.header = header
                if header.length:
                    continue
            header, connection.header, connection.got = connection.header, None, 0
            if not self._message(connection, header, view[HEADER.size : HEADER.size + header.length]):
                return

    def _message(self, connection: Incoming, header: Header, payload: memoryview) -> bool:
        """Handle one message. Return whether the group goes on."""
        if header.kind is Kind.DATA:
            self._counters.received_bytes += len(payload)
            if not self._arrived(header, payload):
                return False
            connection.outgoing += Header(Kind.ACK, header.sequence, header.piece).packed()
            self._flush(connection)
        elif header.kind is Kind.BYE:
            self.farewell = header.sequence
            return self._left()
        elif header.kind is Kind.ABORT:
            self._fail(GroupBroken(bytes(payload).decode(errors="replace")))
            return False
        return True

    def _flush(self, connection: Incoming) -> None:
        while connection.outgoing:
            try:
                sent = connection.sock.send(connection.outgoing)
            except BlockingIOError:
                break
            except OSError:
                connection.outgoing.clear()
                return
            del connection.outgoing[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, lambda mask: self._on_incoming(connection, mask))

    def _end_incoming(self, connection: Incoming) -> None:
        if connection not in self._incoming:
            return
        self._incoming.remove(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        if self.farewell is None and not self.has_greeted:
            self.lost_at = time.monotonic()
