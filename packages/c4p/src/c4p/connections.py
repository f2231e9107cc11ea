"""One member's connections and operations under way, as records, and what the kernel is asked about a socket."""

from __future__ import annotations

import socket
import struct
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from c4p.model import Way
from c4p.paths import Key, Path
from c4p.ring import Operation
from c4p.wire import Header

#: Each source port has a way back of its own, which may be dead alone: so many ports are tried before a way is blamed.
TRIES, TRY_S, CONNECT_S = 3, 0.3, 1.0
_TCP_INFO_UNACKED = 24
_TCP_INFO_BYTES_ACKED = 120  # 64 bits
_TCP_INFO_NOT_SENT = 144
_TCP_INFO_PEERS_WINDOW = 228
_TCP_INFO_BYTES = 232


@dataclass(slots=True, eq=False)
class Parcel:
    """A piece on its way to the next neighbour; kept until it is acknowledged."""

    job: Job
    key: Key
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
    unacknowledged: dict[Key, Parcel] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Outgoing:
    """A connection to the next neighbour; `try_s` is how long it may take to open it, `last_s` on the last try."""

    slot: int
    port: int
    way: Way
    sock: socket.socket
    path: Path
    since: float
    tries: int = 1
    try_s: float = TRY_S
    last_s: float = CONNECT_S
    is_open: bool = False
    retires: bool = False
    trusted: bool = False
    header: memoryview | None = None
    parcel: Parcel | None = None
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


def kernel_waits_s(connection: Outgoing, now: float) -> float:
    """Seconds for which no byte more was acknowledged of what the kernel has sent, or would send if its link were up.

    To be asked at every look at which pieces are under way. That acknowledgements come tells nothing: the neighbour's
    own segments carry some, and where only the way there is dead they go on. What the kernel keeps because the
    receiver has no room is the receiver's doing; kernels before 5.4 do not tell that apart.
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
