"""The thread that moves bytes: sockets of one member to its next and from its previous neighbour.

What it decides it asks of pure state (`ring`, `paths`, `ways`); here are sockets, the clock and the selector. One
thread for each group; it sleeps while nothing is under way.

A piece stays known until the neighbour acknowledges it, so a connection can be dropped at any time: its pieces go to
other connections, and the receiver drops what it has already.
"""

from __future__ import annotations

import collections
import errno
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from c4p import paths as path_rules
from c4p.errors import C4PError, GroupBroken, NoWay
from c4p.model import Counters, PathEvent, PathRecord, Way
from c4p.paths import Path
from c4p.ring import Operation, Piece
from c4p.ways import Ways
from c4p.wire import HEADER, Header, Kind, parse_header

TICK_S = 0.02
UNSEEN_S = 5 * TICK_S
CONNECT_S = 1.0
#: Each source port has a way back of its own, which may be dead alone: so many ports are tried before a way is blamed.
TRIES, TRY_S = 3, 0.3
NO_WAY_S = 10.0
LOST_S = 2.0
LINGER_S = 5.0
TRUST_BYTES = 256 * 1024
_MOST_PAYLOAD = 1024 * 1024
_TCP_INFO_UNACKED = 24
_TCP_INFO_LAST_ACK = 56
_TCP_INFO_NOT_SENT = 144
_TCP_INFO_PEERS_WINDOW = 228
_TCP_INFO_BYTES = 232
_LATER = {errno.EAGAIN, errno.EINPROGRESS, errno.EWOULDBLOCK}


@dataclass(slots=True, eq=False)
class Parcel:
    """A piece on its way to the next neighbour; kept until it is acknowledged."""

    job: Job
    key: path_rules.Key
    view: memoryview
    delivered: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """An operation under way."""

    sequence: int
    operation: Operation
    future: Future[None]
    deadline: float
    queued: int = 0
    unacknowledged: dict[path_rules.Key, Parcel] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Outgoing:
    """A connection to the next neighbour."""

    slot: int
    port: int
    way: Way
    sock: socket.socket
    path: Path
    since: float
    tries: int = 1
    is_open: bool = False
    retires: bool = False
    trusted: bool = False
    header: memoryview | None = None
    parcel: Parcel | None = None
    offset: int = 0
    waits_to_write: bool = True
    incoming: bytearray = field(default_factory=bytearray)

    @property
    def takes_pieces(self) -> bool:
        """Whether a new piece may be given to it."""
        return self.is_open and not self.retires and self.header is None


@dataclass(slots=True, eq=False)
class Incoming:
    """A connection from the previous neighbour."""

    sock: socket.socket
    buffer: bytearray
    got: int = 0
    header: Header | None = None
    greeted: bool = False
    outgoing: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Whom a member talks to.

    Attributes:
        rank: This member.
        size: Members of the group.
        token: Same on all members of one group, random.
        address: Own address, from which connections are opened.
        next_rank: Whom pieces are sent to.
        next_address: Its address and port.
        previous_rank: Who sends pieces.
    """

    rank: int
    size: int
    token: bytes
    address: str
    next_rank: int
    next_address: tuple[str, int]
    previous_rank: int


class Carrier:
    """Carries the operations of one group.

    Args:
        neighbours: Whom to talk to.
        listener: A listening socket of this member; owned by the carrier from now on.
        ways: Ways to the next neighbour, and the planned one of each socket.
        timeout_s: Longest time that an operation may take.
        moves: Whether slow paths are left (dead ones always are).
    """

    def __init__(
        self, neighbours: Neighbours, listener: socket.socket, ways: Ways, timeout_s: float, moves: bool
    ) -> None:
        self._at = neighbours
        self._ways = ways
        self._timeout_s = timeout_s
        self._moves = moves
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._lock = threading.Lock()
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        self._next_sequence = 0
        self._started_sequence = 0
        self._jobs: dict[int, Job] = {}
        self._early: dict[int, dict[int, tuple[int, bytes]]] = {}
        self._queue: collections.deque[Parcel] = collections.deque()
        self._unacknowledged: dict[path_rules.Key, Parcel] = {}
        self._slots: list[Outgoing | None] = [None] * len(ways.planned)
        self._pending: dict[int, Outgoing] = {}
        self._retiring: list[Outgoing] = []
        self._incoming: list[Incoming] = []
        self._unreachable_since: float | None = None
        self._previous_lost_at: float | None = None
        self._refused = False
        self._next_bye: int | None = None  # operations after which the neighbour said farewell
        self._previous_bye: int | None = None
        self._ended = False
        self._closing_since: float | None = None
        self._tick_at = 0.0
        self._looked_at = time.monotonic()
        self._error: C4PError | None = None
        self._done = False
        self._connected = threading.Event()
        self.events: list[PathEvent] = []
        self.counters = Counters()
        self._thread = threading.Thread(target=self._run, name=f"c4p-{neighbours.rank}", daemon=True)
        self._thread.start()

    # -- called from the caller's threads -----------------------------------------------------------------------

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until each socket is connected and the previous neighbour has connected.

        Raises:
            GroupBroken: It took longer than `timeout_s` seconds, or the group failed.
        """
        if not self._connected.wait(timeout_s):
            here, there = self._at.rank, self._at.next_rank
            self._call(lambda: self._fail(GroupBroken(f"rank {here} could not reach rank {there} in {timeout_s:g} s")))
        if self._error:
            raise self._error

    def submit(self, operation: Operation) -> Future[None]:
        """Start an operation; all members must submit the same ones in the same order.

        Returns:
            Done when this member has all it is to receive and its buffer may be changed.
        """
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._ended:
                future.set_exception(self._error or GroupBroken("the group is closed"))
                return future
            sequence = self._next_sequence
            self._next_sequence += 1
            job = Job(sequence, operation, future, time.monotonic() + self._timeout_s)
            self._inbox.append(lambda: self._start(job))
        self._wake()
        return future

    def move(self, ways: dict[Way, list[int]], planned: list[Way], all_anew: bool = False) -> None:
        """Take other ways, as planned anew: connections are opened first, then the old ones end.

        Args:
            ways: Source ports by way.
            planned: Way of each connection.
            all_anew: Ports lead elsewhere now, so that connections whose way has not changed move too.
        """
        self._call(lambda: self._replan(ways, planned, all_anew))

    def planned(self) -> list[Way]:
        """The planned way of each connection."""
        return list(self._ways.planned)

    def records(self) -> list[PathRecord]:
        """What each socket has done."""
        records = []
        for slot, connection in enumerate(list(self._slots)):
            if connection is None:
                records.append(PathRecord(slot, 0, self._ways.now_at[slot], 0, 0.0, "none"))
                continue
            path = connection.path
            state = "open" if connection.is_open else "connecting"
            record = PathRecord(slot, connection.port, connection.way, path.delivered_bytes, path.rate, state)
            records.append(record)
        return records

    def abort(self, why: str) -> None:
        """End at once; neighbours are told why."""
        self._call(lambda: self._fail(GroupBroken(f"rank {self._at.rank} gave up: {why}")))

    def close(self, timeout_s: float = LINGER_S) -> None:
        """End when the neighbour has all that was sent, at the latest after `timeout_s` seconds."""
        self._call(self._begin_close)
        self._thread.join(timeout_s + 2.0)

    def _call(self, function: Callable[[], None]) -> None:
        with self._lock:
            self._inbox.append(function)
        self._wake()

    def _wake(self) -> None:
        try:
            self._wake_w.send(b"x")
        except OSError:
            return

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._selector.register(self._wake_r, selectors.EVENT_READ, self._drain_wake)
            for slot in range(len(self._slots)):
                self._connect(slot)
            while not self._done:
                self._turn()
        except Exception as error:  # noqa: BLE001 (the thread's own failure must reach whoever waits)
            self._fail(GroupBroken(f"the carrier of rank {self._at.rank} failed: {error!r}"))
        finally:
            self._tear_down()

    def _turn(self) -> None:
        busy = self._unacknowledged or self._queue or self._jobs or self._pending or self._closing_since
        for key, mask in self._selector.select(TICK_S if busy else 0.25):
            key.data(mask)
        while self._inbox:
            with self._lock:
                function = self._inbox.popleft()
            function()
        self._pump()
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + TICK_S
            self._tick(now)

    def _drain_wake(self, _mask: int) -> None:
        try:
            self._wake_r.recv(4096)
        except BlockingIOError:
            return

    # -- operations -----------------------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        self._started_sequence = job.sequence + 1
        if self._error is None and self._closing_since is not None:
            self._fail(GroupBroken(f"{job.operation.name} was called after the group was closed"))
        if self._error is not None:
            job.future.set_exception(self._error)
            return
        if self._has_left(self._next_bye, self._at.next_rank, [job]):
            return
        if self._has_left(self._previous_bye, self._at.previous_rank, [job]):
            return
        self._jobs[job.sequence] = job
        self._enqueue(job, job.operation.start())
        for number, (signature, payload) in self._early.pop(job.sequence, {}).items():
            self._take(job, number, signature, memoryview(payload))
        self._finish_if_complete(job)

    def _enqueue(self, job: Job, pieces: list[Piece]) -> None:
        for piece in pieces:
            key = (job.sequence, piece.number)
            parcel = Parcel(job, key, job.operation.buffer[piece.start : piece.stop])
            self._unacknowledged[key] = job.unacknowledged[key] = parcel
            job.queued += 1
            self._queue.append(parcel)

    def _take(self, job: Job, number: int, signature: int, payload: memoryview) -> None:
        operation = job.operation
        if self._error is not None:
            return
        if signature != operation.signature:
            what = f"operation {job.sequence}: this member (rank {self._at.rank}) called {operation.name}"
            other = f"rank {self._at.previous_rank} another operation, size, type or reduction"
            self._fail(GroupBroken(f"{what}, {other}; all members must call the same operations in the same order"))
            return
        pieces = operation.take(number, payload)
        if pieces is None:
            self.counters.duplicates += 1
            return
        self._enqueue(job, pieces)

    def _finish_if_complete(self, job: Job) -> None:
        if job.queued or not job.operation.complete or job.future.done():
            return
        for parcel in job.unacknowledged.values():  # the caller may change the buffer from now on
            parcel.view = memoryview(bytes(parcel.view))
        self._jobs.pop(job.sequence, None)
        self.counters.operations += 1
        job.future.set_result(None)

    # -- sending --------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        while self._queue:
            parcel = self._queue[0]
            if parcel.delivered:
                self._unqueue()
                continue
            length = len(parcel.view)
            free = [c for c in self._slots if c is not None and c.takes_pieces and c.path.has_room(length)]
            if not free:
                return
            self._give(min(free, key=lambda c: c.path.outstanding_bytes / (c.path.rate or 1e9)), parcel)
            self._unqueue()
        self._send_late_again()

    def _unqueue(self) -> None:
        job = self._queue.popleft().job
        job.queued -= 1
        self._finish_if_complete(job)

    def _send_late_again(self) -> None:
        idle = [c for c in self._slots if c is not None and c.takes_pieces and not c.path.outstanding]
        if not idle or not self._unacknowledged:
            return
        busy = [c for c in self._slots if c is not None and c.path.outstanding]
        for key in path_rules.late_pieces((c.path for c in busy), time.monotonic()):
            parcel = self._unacknowledged.get(key)
            if parcel is None or parcel.delivered or sum(key in c.path.outstanding for c in busy + idle) > 1:
                continue
            if not idle:
                return
            self.counters.sent_again_bytes += len(parcel.view)
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
        self.counters.sent_bytes += len(body)
        connection.header = connection.parcel = None
        self._wait_to_write(connection, False)

    def _wait_to_write(self, connection: Outgoing, waits: bool) -> None:
        if connection.waits_to_write == waits:
            return
        connection.waits_to_write = waits
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
        self._selector.modify(connection.sock, events, lambda mask: self._on_outgoing(connection, mask))

    # -- connections to the next neighbour ----------------------------------------------------------------------------

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
                self._refused = code == errno.ECONNREFUSED
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
        before = self._slots[slot]
        self._slots[slot] = connection
        connection.is_open = True
        connection.since = time.monotonic()
        self._refused = False
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
        if self._slots[slot] is None:
            self._ways.now_at[slot] = connection.way
            self._ways.elsewhere(slot)

    def _lost(self, connection: Outgoing) -> None:
        """A connection broke."""
        if self._next_bye is not None or connection.retires:
            self._drop(connection)
            return
        self._leave(connection, "lost", 0.0)

    def _leave(self, connection: Outgoing, why: str, after_s: float) -> None:
        """Its pieces go elsewhere, and so does its slot."""
        now = time.monotonic()
        slot = connection.slot
        self._ways.now_at[slot] = connection.way
        self._ways.leave(slot, why, now)
        self._drop(connection)
        self._connect(slot)
        pending = self._pending.get(slot)
        self._note("left", why, connection, pending, after_s)

    def _drop(self, connection: Outgoing) -> None:
        self._discard(connection)
        connection.is_open = False
        if self._slots[connection.slot] is connection:
            self._slots[connection.slot] = None
        if connection in self._retiring:
            self._retiring.remove(connection)
        self._count(connection)
        elsewhere = [c.path.outstanding for c in [*self._slots, *self._retiring] if c is not None]
        for key in reversed(list(connection.path.outstanding)):
            parcel = self._unacknowledged.get(key)
            if parcel is not None and not any(key in keys for keys in elsewhere):
                self._queue.appendleft(parcel)
                parcel.job.queued += 1
                self.counters.sent_again_bytes += len(parcel.view)

    def _count(self, connection: Outgoing) -> None:
        by_way = self.counters.by_way
        by_way[connection.way] = by_way.get(connection.way, 0) + connection.path.delivered_bytes

    def _discard(self, connection: Outgoing) -> None:
        try:
            self._selector.unregister(connection.sock)
        except (KeyError, ValueError):
            return
        _close_at_once(connection.sock)

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
                self._next_bye = header.sequence
                self._next_left()
            elif header.kind is Kind.ABORT:
                self._fail(GroupBroken(payload.decode(errors="replace")))
        del pending[:at]

    def _acknowledged(self, connection: Outgoing, key: path_rules.Key, now: float) -> None:
        connection.path.acknowledged(key, now)
        if not connection.trusted and connection.path.delivered_bytes >= TRUST_BYTES:
            connection.trusted = True
            self._ways.works(connection.way)
        parcel = self._unacknowledged.pop(key, None)
        if parcel is not None:
            parcel.delivered = True
            parcel.job.unacknowledged.pop(key, None)

    def _next_left(self) -> None:
        """The next neighbour has all it needs: nothing has to be delivered any more."""
        if self._has_left(self._next_bye, self._at.next_rank, list(self._jobs.values())):
            return
        while self._queue:
            self._unqueue()
        self._unacknowledged.clear()

    def _has_left(self, farewell: int | None, rank: int, jobs: list[Job]) -> bool:
        """Whether one of these operations can never end, as a neighbour has left before it; then the group fails."""
        for job in jobs:
            if farewell is not None and job.sequence >= farewell:
                error = GroupBroken(f"rank {rank} left the group before operation {job.sequence}, {job.operation.name}")
                self._fail(error)
                if not job.future.done():
                    job.future.set_exception(error)
                return True
        return False

    # -- connections from the previous neighbour -----------------------------------------------------------------------

    def _accept(self, _mask: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Incoming(sock, bytearray(HEADER.size + _MOST_PAYLOAD))
        self._incoming.append(connection)
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._on_incoming(connection, mask))

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
                if header.length > _MOST_PAYLOAD or (not connection.greeted and header.kind is not Kind.HELLO):
                    raise ValueError("not a message of this protocol")
                connection.header = header
                if header.length:
                    continue
            header, connection.header, connection.got = connection.header, None, 0
            self._message(connection, header, view[HEADER.size : HEADER.size + header.length])
            if self._error:
                return

    def _message(self, connection: Incoming, header: Header, payload: memoryview) -> None:
        if header.kind is Kind.HELLO:
            if bytes(payload) != self._at.token or header.piece != self._at.previous_rank:
                raise ValueError("a greeting for another group")
            connection.greeted = True
            self._previous_lost_at = None
        elif header.kind is Kind.DATA:
            self.counters.received_bytes += len(payload)
            self._arrived(header, payload)
            if self._error is None:
                self._reply(connection, Header(Kind.ACK, header.sequence, header.piece).packed())
        elif header.kind is Kind.BYE:
            self._previous_bye = header.sequence
            self._has_left(self._previous_bye, self._at.previous_rank, list(self._jobs.values()))
        elif header.kind is Kind.ABORT:
            self._fail(GroupBroken(bytes(payload).decode(errors="replace")))

    def _arrived(self, header: Header, payload: memoryview) -> None:
        job = self._jobs.get(header.sequence)
        if job is not None:
            self._take(job, header.piece, header.signature, payload)
            if self._error is None:
                self._finish_if_complete(job)
        elif header.sequence >= self._started_sequence:
            early = self._early.setdefault(header.sequence, {})
            early.setdefault(header.piece, (header.signature, bytes(payload)))
        else:
            self.counters.duplicates += 1

    def _reply(self, connection: Incoming, data: bytes) -> None:
        connection.outgoing += data
        self._flush(connection)

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
        if connection.greeted and self._previous_bye is None and not any(c.greeted for c in self._incoming):
            self._previous_lost_at = time.monotonic()

    # -- time --------------------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        self._forget_unseen(now)
        self._check_deadlines(now)
        self._check_neighbours(now)
        if self._error is not None:
            return
        self._check_connecting(now)
        self._check_paths(now)
        self._check_retiring()
        if not self._connected.is_set() and all(self._slots) and any(c.greeted for c in self._incoming):
            self._connected.set()
        if self._closing_since is not None:
            self._check_close(now)

    def _forget_unseen(self, now: float) -> None:
        """Time in which this thread did not run says nothing about any path."""
        unseen_s, self._looked_at = now - self._looked_at, now
        if unseen_s < UNSEEN_S:
            return
        for connection in [*self._slots, *self._retiring]:
            if connection is not None:
                connection.path.not_seen(unseen_s, now)
        for pending in self._pending.values():
            pending.since = min(pending.since + unseen_s, now)

    def _check_deadlines(self, now: float) -> None:
        for job in self._jobs.values():
            if now > job.deadline:
                self._fail(GroupBroken(self._late(job)))
                return

    def _late(self, job: Job) -> str:
        operation, at = job.operation, self._at
        begun = f"{operation.name} (operation {job.sequence}) took longer than {self._timeout_s:g} s on rank {at.rank}"
        came = f"{operation.arrived} of {operation.expected} pieces came from rank {at.previous_rank}"
        open_ = f"{len(job.unacknowledged)} pieces wait for rank {at.next_rank}"
        return f"{begun}: {came}, {open_}. A member that comes later, or not at all, stops all others"

    def _check_neighbours(self, now: float) -> None:
        if self._previous_lost_at is not None and now - self._previous_lost_at > LOST_S and not self._closing_since:
            self._fail(GroupBroken(f"rank {self._at.previous_rank} ended: its connections closed without a farewell"))
        if any(c is not None and c.is_open for c in self._slots) or self._next_bye is not None:
            self._unreachable_since = None
            return
        self._unreachable_since = self._unreachable_since or now
        if self._closing_since is not None or not self._connected.is_set():
            return  # before the first connection `wait_connected` has the last word
        after = LOST_S if self._refused else NO_WAY_S
        if now - self._unreachable_since > after:
            address, port = self._at.next_address
            how = "it refuses connections: its process has ended" if self._refused else "no path to it works"
            self._fail(NoWay(f"rank {self._at.next_rank} ({address}:{port}) cannot be reached for {after:g} s: {how}"))

    def _check_connecting(self, now: float) -> None:
        if self._next_bye is not None:
            return
        for pending in list(self._pending.values()):
            has_another = pending.tries < TRIES and pending.way in self._ways.ports
            if has_another and now - pending.since > TRY_S:
                self._connect(pending.slot, pending.way, pending.tries + 1)
            elif now - pending.since > CONNECT_S:
                self._connect_failed(pending)
        for slot, connection in enumerate(self._slots):
            if connection is None and slot not in self._pending and self._closing_since is None:
                self._connect(slot)
        for slot, way in self._ways.due(now):
            if slot not in self._pending and self._slots[slot] is not None:
                self._connect(slot, way)

    def _check_paths(self, now: float) -> None:
        connections = {c.path.name: c for c in self._slots if c is not None}
        accounts = [c.path for c in connections.values()]
        stalled = [p for p in accounts if p.outstanding and now - p.progress > path_rules.DEAD_S]
        unacknowledged = {p.name: _waits_for_kernel(connections[p.name].sock) for p in stalled}
        verdicts = path_rules.dead_paths(accounts, unacknowledged, now)
        if self._moves and self._ways.known and not verdicts:
            verdicts = path_rules.slow_paths(accounts, now)
        for verdict in verdicts:  # one that is slow because nothing at all is acknowledged is dead
            why = "dead" if unacknowledged.get(verdict.path.name) else verdict.why
            self._leave(connections[verdict.path.name], why, verdict.after_s)

    def _check_retiring(self) -> None:
        for connection in list(self._retiring):
            if not connection.path.outstanding and connection.header is None:
                self._drop(connection)

    def _replan(self, ways: dict[Way, list[int]], planned: list[Way], all_anew: bool) -> None:
        for slot in self._ways.replan(ways, planned, all_anew):
            self._connect(slot, planned[slot])

    # -- the end --------------------------------------------------------------------------------------------------

    def _begin_close(self) -> None:
        if self._closing_since is None:
            self._closing_since = time.monotonic()

    def _check_close(self, now: float) -> None:
        if self._closing_since is None:
            return
        if (self._unacknowledged or self._jobs) and now - self._closing_since < LINGER_S:
            return
        if self._jobs:
            self._fail(GroupBroken(f"rank {self._at.rank} closed the group while operations were under way"))
        self._done = True

    def _fail(self, error: C4PError) -> None:
        """The group ends: everybody who waits is told, and both neighbours."""
        if self._error is not None:
            return
        self._error = error
        self._connected.set()
        jobs, self._jobs = list(self._jobs.values()), {}
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(error)
        self._unacknowledged.clear()
        self._queue.clear()
        self._done = True

    def _tear_down(self) -> None:
        text = str(self._error).encode() if self._error else b""
        kind = Kind.ABORT if text else Kind.BYE
        word = Header(kind, sequence=self._started_sequence, length=len(text)).packed() + text
        farewell = [c.sock for c in self._slots if c is not None and c.is_open and c.header is None]
        farewell += [c.sock for c in self._incoming if c.greeted and not c.outgoing]
        for sock in farewell:
            try:
                sock.send(word)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                continue
        for left_over in self._slots:
            if left_over is not None:
                self._count(left_over)
        with self._lock:
            self._ended = True
            left = list(self._inbox)
            self._inbox.clear()
        if self._error is None:
            self._error = GroupBroken("the group is closed")
        for function in left:
            function()
        self._connected.set()
        _wait_for_ends(farewell)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._wake_w.close()
        self._selector.close()


def _waits_for_kernel(sock: socket.socket) -> bool:
    """Whether no acknowledgement comes of what the kernel has sent, or would send if its own link were up.

    What it keeps because the receiver has no room is the receiver's doing; kernels before 5.4 do not tell that apart.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return True

    def field(offset: int) -> int:
        return int(struct.unpack_from("I", info, offset)[0]) if len(info) >= offset + 4 else 0

    is_kept = field(_TCP_INFO_NOT_SENT) > 0 and field(_TCP_INFO_PEERS_WINDOW) > 0
    return field(_TCP_INFO_LAST_ACK) >= 200 and (field(_TCP_INFO_UNACKED) > 0 or is_kept)


def _close_at_once(sock: socket.socket) -> None:
    """Close without TIME_WAIT, so that the source port can be used again."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        sock.close()


def _wait_for_ends(socks: list[socket.socket], timeout_s: float = 0.5) -> None:
    """Read what still comes until the other end has closed too: data that nobody read would reset the farewell."""
    until = time.monotonic() + timeout_s
    open_ = list(socks)
    while open_ and time.monotonic() < until:
        for sock in list(open_):
            try:
                if not sock.recv(65536):
                    open_.remove(sock)
            except BlockingIOError:
                continue
            except OSError:
                open_.remove(sock)
        time.sleep(0.005)
