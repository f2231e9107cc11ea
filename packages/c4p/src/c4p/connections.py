"""Records of one member's connections and running operations, and the kernel's counters of a socket."""

from __future__ import annotations

import socket
import struct
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from c4p.flows import Flow, Key
from c4p.model import NetworkPath
from c4p.ring import Operation
from c4p.wire import Header

#: Ports tried before a path is considered dead (each port has its own return path, which may be the dead one), and
#: seconds that a connection attempt, and the last one, may take.
TRIES, TRY_S, CONNECT_S = 3, 0.3, 1.0
_TCP_INFO_UNACKED = 24
_TCP_INFO_BYTES_ACKED = 120  # 64 bits
_TCP_INFO_NOT_SENT = 144
_TCP_INFO_PEERS_WINDOW = 228
_TCP_INFO_BYTES = 232


@dataclass(slots=True, eq=False)
class PendingPiece:
    """A piece that waits to be sent or acknowledged."""

    job: Job
    key: Key
    view: memoryview
    delivered: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """A running operation."""

    sequence: int
    operation: Operation
    future: Future[None]
    deadline: float
    queued: int = 0
    unacknowledged: dict[Key, PendingPiece] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Outgoing:
    """A connection to the next neighbour; `try_s` is how long it may take to open it, `last_s` on the last try."""

    index: int
    port: int
    path: NetworkPath
    sock: socket.socket
    flow: Flow
    since: float
    tries: int
    try_s: float
    last_s: float
    is_open: bool = False
    retires: bool = False
    trusted: bool = False
    header: memoryview | None = None
    piece: PendingPiece | None = None
    offset: int = 0
    waits_to_write: bool = True
    incoming: bytearray = field(default_factory=bytearray)
    acked_bytes: int = -1
    acked_at: float = 0.0  # when the neighbour's kernel last acknowledged more, or had nothing to acknowledge

    @property
    def takes_pieces(self) -> bool:
        """Return True if a new piece may be given to it."""
        return self.is_open and not self.retires and self.header is None


@dataclass(slots=True, eq=False)
class Incoming:
    """A connection from the previous neighbour, which has shown the group's token."""

    sock: socket.socket
    buffer: bytearray
    got: int = 0
    header: Header | None = None
    outgoing: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The two ring neighbours of a member.

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


def kernel_waits_s(connection: Outgoing, now: float) -> float:
    """Return the seconds since the kernel last saw an acknowledgement of new bytes, while it has bytes to send.

    Call it in every check in which pieces are in flight. The arrival of acknowledgements alone says nothing: the
    neighbour's own segments carry some even if the path to it is dead. Bytes that wait for the receiver's window do
    not count; kernels before 5.4 do not report them.
    """
    try:
        info = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return now - connection.acked_at

    def field(offset: int, form: str = "I") -> int:
        return int(struct.unpack_from(form, info, offset)[0]) if len(info) >= offset + struct.calcsize(form) else 0

    is_kept = field(_TCP_INFO_NOT_SENT) > 0 and field(_TCP_INFO_PEERS_WINDOW) > 0
    acked = field(_TCP_INFO_BYTES_ACKED, "Q")
    if acked != connection.acked_bytes or not (field(_TCP_INFO_UNACKED) or is_kept):
        connection.acked_bytes, connection.acked_at = acked, now
    return now - connection.acked_at


def close_at_once(sock: socket.socket) -> None:
    """Close without TIME_WAIT, so that the source port can be used again."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        sock.close()


def wait_for_ends(socks: list[socket.socket], timeout_s: float = 0.5) -> None:
    """Read until the other ends have closed, since unread data would reset the connection and discard the farewell."""
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
