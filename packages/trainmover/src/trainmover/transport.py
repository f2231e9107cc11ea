"""TCP connections between members.

A connection belongs to one pair of members, one group and one purpose. Messages have a header (sequence number, code,
length). It tells members in different collectives apart, and it lets two stayers bring their connection back to a
message boundary after an interruption, without reconnecting.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from trainmover.admission import Front
from trainmover.errors import (
    LinkError,
    LinkLostError,
    LinkTimeoutError,
    MismatchError,
    RefusedError,
    WireError,
)

HEADER = struct.Struct("<IIQ")
MARK = 0xFFFF
_HELLO_LIMIT = 4096
_PAD = memoryview(bytes(1 << 16))

Address = tuple[str, int]
Arrived = Callable[[], None] | None


@dataclass(frozen=True)
class Hello:
    """The greeting of a connection: who connects to whom, and why.

    Attributes:
        token: The job's secret.
        purpose: "collective", "direct", "state" or "copy".
        group: Name of the group; empty for connections outside groups.
        generation: The generation that the connection is for.
        source: The dialling member's global rank.
        target: The global rank that it expects to find.
    """

    token: str
    purpose: str
    group: str
    generation: int
    source: int
    target: int


class Wake:
    """Ends all waits of a process's connections until it is cleared."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._set = False
        self._lock = threading.Lock()

    def set(self) -> None:
        """Wake all waiters."""
        with self._lock:
            if not self._set:
                self._set = True
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Allow waits again."""
        with self._lock:
            if self._set:
                self._set = False
                os.eventfd_read(self.fd)

    @property
    def is_set(self) -> bool:
        """Return True if waits end at once."""
        return self._set


class Link:
    """A connection to one peer, with the position in the current message of each direction.

    Args:
        connection: A connected TCP socket; the link owns it from here on.
        peer: The peer's global rank.
    """

    def __init__(self, connection: socket.socket, peer: int) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.peer = peer
        self.fd = connection.fileno()
        self.out_header = memoryview(b"")
        self.out_body = 0
        self.in_header = bytearray(HEADER.size)
        self.in_header_at = 0
        self.in_body = 0

    def close(self) -> None:
        """Close the connection; the peer sees its end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class Traffic:
    """What one link has to send and to receive in one collective.

    Messages are announced by `sends` and `expects`, then their bytes are given by `push` and `into`; both may be
    called while the traffic is pumped, from the function that is called when bytes have come.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._outgoing: deque[memoryview] = deque()
        self._incoming: deque[tuple[memoryview, Arrived]] = deque()
        self._on_header: Callable[[int, int, int], None] = lambda *_: None
        self.wants_header = False
        self.mask = 0

    def sends(self, sequence: int, code: int, n_bytes: int) -> None:
        """Announce one outgoing message of n_bytes."""
        self.link.out_header = memoryview(HEADER.pack(sequence, code, n_bytes))
        self.link.out_body = n_bytes

    def push(self, view: memoryview) -> None:
        """Give the next bytes of the outgoing message."""
        if view.nbytes:
            self._outgoing.append(view)

    def expects(self, sequence: int, code: int, n_bytes: int) -> None:
        """Announce one incoming message; any other is an error."""
        expected = (sequence, code, n_bytes)

        def check(*header: int) -> None:
            if header != expected:
                raise MismatchError(
                    f"rank {self.link.peer} is in another collective: it sent {header}, "
                    f"this rank expects {expected} (number, code, bytes); "
                    "every member of a group has to call the same collectives in the same order with the same sizes"
                )

        self.listens(check)

    def listens(self, on_header: Callable[[int, int, int], None]) -> None:
        """Read one header, whatever it says, and hand it over."""
        self._on_header = on_header
        self.wants_header = True

    def into(self, view: memoryview, then: Arrived = None) -> None:
        """Give the place of the next bytes of the incoming message, and what to do when they are there."""
        if view.nbytes:
            self._incoming.append((view, then))
        elif then is not None:
            then()

    def wanted(self) -> int:
        """Return the poll mask of what is outstanding, 0 if nothing is."""
        mask = select.POLLIN if self.wants_header or self._incoming else 0
        return mask | (select.POLLOUT if self._outgoing or self.link.out_header else 0)

    def send_some(self) -> None:
        """Send as much as the connection takes."""
        link = self.link
        try:
            while link.out_header:
                link.out_header = link.out_header[link.socket.send(link.out_header) :]
            while self._outgoing:
                view = self._outgoing[0]
                sent = link.socket.send(view)
                link.out_body -= sent
                if sent == view.nbytes:
                    self._outgoing.popleft()
                else:
                    self._outgoing[0] = view[sent:]
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkLostError(f"the connection to rank {link.peer} is gone: {error}", link.peer) from error

    def receive_some(self) -> None:
        """Receive as much as has arrived and is wanted."""
        link = self.link
        try:
            while self.wants_header or self._incoming:
                if self.wants_header:
                    self._receive_header()
                    continue
                view, then = self._incoming[0]
                n_got = self._got(link.socket.recv_into(view))
                link.in_body -= n_got
                if n_got < view.nbytes:
                    self._incoming[0] = (view[n_got:], then)
                    continue
                self._incoming.popleft()
                if then is not None:
                    then()
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkLostError(f"the connection to rank {link.peer} is gone: {error}", link.peer) from error

    def _receive_header(self) -> None:
        link = self.link
        link.in_header_at += self._got(link.socket.recv_into(memoryview(link.in_header)[link.in_header_at :]))
        if link.in_header_at < HEADER.size:
            return
        header = HEADER.unpack(link.in_header)
        link.in_header_at, link.in_body, self.wants_header = 0, header[2], False
        self._on_header(*header)

    def _got(self, n_bytes: int) -> int:
        if n_bytes == 0:
            raise LinkLostError(f"rank {self.link.peer} has closed its connection", self.link.peer)
        return n_bytes


def pump(traffics: Iterable[Traffic], wake: Wake, deadline: float) -> None:
    """Move bytes in both directions on all links until everything announced is done.

    Args:
        traffics: One per link.
        wake: Ends the wait early.
        deadline: `time.monotonic()` after which a wait is an error.

    Raises:
        LinkLostError: A peer's connection has ended.
        LinkTimeoutError: The deadline has passed.
        LinkError: `wake` was set.
        MismatchError: A peer is in another collective.
    """
    open_by_fd = {traffic.link.fd: traffic for traffic in traffics}
    for traffic in open_by_fd.values():
        traffic.send_some()
    poller = select.poll()
    poller.register(wake.fd, select.POLLIN)
    for traffic in open_by_fd.values():
        traffic.receive_some()
        traffic.mask = 0
    while True:
        n_open = 0
        for fd, traffic in open_by_fd.items():
            mask = traffic.wanted()
            if mask != traffic.mask:
                (poller.register if mask else poller.unregister)(fd, *((mask,) if mask else ()))
                traffic.mask = mask
            n_open += mask != 0
        if not n_open:
            return
        ready = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            slow = [traffic.link.peer for traffic in open_by_fd.values() if traffic.mask & select.POLLIN]
            raise LinkTimeoutError(f"nothing came from ranks {slow} in time", slow[0] if len(slow) == 1 else -1)
        for fd, events in ready:
            if fd == wake.fd:
                raise LinkError("a recovery has begun")
            traffic = open_by_fd[fd]
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                traffic.receive_some()
                if events & (select.POLLHUP | select.POLLERR) and not traffic.mask & select.POLLIN:
                    raise LinkLostError(f"rank {traffic.link.peer} has closed its connection", traffic.link.peer)
            if events & select.POLLOUT:
                traffic.send_some()


def drain(links: Iterable[Link], generation: int, wake: Wake, deadline: float) -> None:
    """Bring connections between stayers back to a message boundary.

    Each side fills up what it had begun to send, then sends a mark of the new generation, and throws away what comes
    before the other's mark.

    Args:
        links: Connections of one group or of several.
        generation: What the marks carry.
        wake: Ends the wait early.
        deadline: `time.monotonic()` after which a wait is an error.

    Raises:
        LinkError: As `pump`.
    """
    sink = memoryview(bytearray(1 << 16))
    pump([_draining(link, generation, sink) for link in links], wake, deadline)
    for link in links:
        link.in_body = link.out_body = 0


def _draining(link: Link, generation: int, sink: memoryview) -> Traffic:
    traffic = Traffic(link)
    while link.out_body > 0:  # counted down again when sent; here only to cut the padding
        n_bytes = min(link.out_body, _PAD.nbytes)
        traffic.push(_PAD[:n_bytes])
        link.out_body -= n_bytes
    traffic.push(memoryview(HEADER.pack(generation, MARK, 0)))

    def skip() -> None:
        if link.in_body > 0:
            traffic.into(sink[: min(link.in_body, sink.nbytes)], skip)
        else:
            traffic.listens(look)

    def look(sequence: int, code: int, _n_bytes: int) -> None:
        if (sequence, code) != (generation, MARK):
            skip()

    skip()
    return traffic


class Listener:
    """Accepts connections from other members, checks their greetings, and keeps them until they are taken.

    It lives in a training process, and any client that reaches its port can connect. So one thread serves all that have
    not shown the token (`trainmover.admission`).

    Args:
        host: Address to listen on and to be dialled at.
        token: What a greeting must carry. It may not be empty.
        admit: Given a Hello, says why it is refused, or an empty string.
    """

    def __init__(self, host: str, token: str, admit: Callable[[Hello], str]) -> None:
        self._token = token.encode()
        self._admit = admit
        self._arrived: dict[tuple[str, str, int, int], Link] = {}
        self._some = threading.Condition()
        self._servants: dict[str, Callable[[Link], None]] = {}
        listener = socket.socket()
        listener.bind((host, 0))
        self.address: Address = (host, listener.getsockname()[1])
        self._front = Front(listener, self._judge, _HELLO_LIMIT, "trainmover-listener")

    def take(self, purpose: str, group: str, generation: int, source: int, wake: Wake, deadline: float) -> Link:
        """Wait for one connection.

        Raises:
            LinkTimeoutError: It has not come before the deadline.
            LinkError: `wake` was set.
        """
        key = (purpose, group, generation, source)
        with self._some:
            while key not in self._arrived:
                if wake.is_set:
                    raise LinkError("a recovery has begun")
                if time.monotonic() >= deadline:
                    raise LinkTimeoutError(
                        f"rank {source} has not connected ({purpose}, {group or 'no group'})", source
                    )
                self._some.wait(0.05)
            return self._arrived.pop(key)

    def serve(self, purpose: str, servant: Callable[[Link], None]) -> None:
        """Pass on connections of this purpose, each in a thread of its own."""
        self._servants[purpose] = servant

    def close(self) -> None:
        """Take no more connections."""
        self._front.close()

    def _judge(self, caller: socket.socket, words: bytes) -> None:
        """Admit or close a connection by its first bytes."""
        line, end, _ = words.partition(b"\n")
        hello = _hello(line) if end else None
        if hello is None:
            caller.close()
            return
        is_known = bool(self._token) and hmac.compare_digest(hello.token.encode(errors="replace"), self._token)
        reason = self._admit(hello) if is_known else "the token is not this job's"
        try:
            caller.recv(len(line) + 1)  # it is there: it has been looked at
            caller.send((reason or "OK").encode() + b"\n")
            link = None if reason else Link(caller, hello.source)
        except OSError:  # it has gone
            link = None
        if link is None:
            caller.close()
        else:
            self._admitted(link, hello)

    def _admitted(self, link: Link, hello: Hello) -> None:
        servant = self._servants.get(hello.purpose)
        if servant is not None:
            threading.Thread(target=servant, args=(link,), daemon=True).start()
            return
        with self._some:
            stale = self._arrived.pop((hello.purpose, hello.group, hello.generation, hello.source), None)
            self._arrived[hello.purpose, hello.group, hello.generation, hello.source] = link
            self._some.notify_all()
        if stale is not None:
            stale.close()


def _hello(line: bytes) -> Hello | None:
    """Return a caller's greeting, or None if it is not one."""
    try:
        hello = Hello(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    texts, numbers = (hello.token, hello.purpose, hello.group), (hello.generation, hello.source, hello.target)
    is_sound = all(isinstance(one, str) for one in texts) and all(isinstance(one, int) for one in numbers)
    return hello if is_sound else None


def dial(address: Address, hello: Hello, timeout_s: float) -> Link:
    """Connect to another member's listener.

    Raises:
        LinkLostError: The listener does not answer in time.
        RefusedError: The other member turned the call down; the message has its reason.
    """
    try:
        connection = socket.create_connection(address, timeout=timeout_s)
        connection.sendall(json.dumps(asdict(hello)).encode() + b"\n")
        answer = _line(connection)
    except (OSError, WireError) as error:
        where = f"{address[0]}:{address[1]}"
        raise LinkLostError(f"rank {hello.target} cannot be reached at {where}: {error}", hello.target) from error
    if answer != "OK":
        connection.close()
        raise RefusedError(f"rank {hello.target} refused the connection: {answer}")
    return Link(connection, hello.target)


def _line(connection: socket.socket) -> str:
    """Read one line byte by byte, so that no byte behind it is consumed."""
    line = bytearray()
    while len(line) < _HELLO_LIMIT:
        byte = connection.recv(1)
        if not byte:
            raise WireError("the connection ended before the first line was complete")
        if byte == b"\n":
            return line.decode()
        line += byte
    raise WireError("the first line is too long")
