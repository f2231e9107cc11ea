"""TCP connections of single processes through netlink (sock_diag), and a worker's traffic with each other host.

This needs no rights beyond reading /proc/<pid>/fd, and sees only sockets of our own network namespace. In a ring of
hosts every link carries the same bytes at the pace of the slowest one. A connection over the slow link has data under
way nearly all the time, the others only for a moment.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from eroica.hardware.writer import Channel, SampleWriter, Track

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_REQUEST_ONE = 1
_ANY_STATE = 0xFFFFFFFF
_DONE = 3
_ERROR = 2
_INET_DIAG_INFO = 2
_ESTABLISHED_AND_CLOSE_WAIT = 1 << 1 | 1 << 8
_HEADER = struct.Struct("=IHHII")
#: `inet_diag_msg`: family, ports, addresses, cookie, queued bytes, inode.
_DIAG = struct.Struct("=B3x4s16s16s4xQ8xI4xI")
#: `tcp_info`: milliseconds since data came, round trip, retransmits, bytes acknowledged and received, unsent bytes,
#: busy time, and the part of it in which the other side's window was full.
_INFO = struct.Struct("=52xI12xI28xI16xQQ8xI20xQQ")
_SHORTEST_INFO = 104
_PORTS = struct.Struct("!HH")
_MAPPED = bytes(10) + b"\xff\xff"
_ATTRIBUTE = struct.Struct("=HH")
_BUFFER_BYTES = 1 << 17
_PATIENCE_S = 0.2
#: Requests in one message: their answers must fit into the socket's buffer.
_AT_ONCE = 64
#: Load from which data counts as waiting, and links as used, bytes: small messages wait for delayed acknowledgements.
LEAST_LOAD_BYTES = 4096
_MOST_LINKS = 256
#: Name, unit and factor of each channel. The rates of the last two are a mean queue in bytes, and a mean of round trip
#: times busy time.
_CHANNELS = (
    ("link_sent", "B/s", 1.0),
    ("link_received", "B/s", 1.0),
    ("link_retransmits", "1/s", 1.0),
    ("link_busy", "s/s", 1e-6),
    ("link_queued", "B", 1e-6),
    ("link_busy_rtt", "s", 1e-12),
)


class Connection(NamedTuple):
    """Totals of one TCP socket; times in microseconds.

    `queued_bytes` are not acknowledged yet, sent or not (`unsent_bytes`). The kernel counts busy time in ticks (1 to
    10 ms). IPv4 inside IPv6 is written as IPv4.
    """

    inode: int
    cookie: int
    rtt_us: int
    retransmits: int
    bytes_acked: int
    bytes_received: int
    busy_us: int
    receive_limited_us: int
    local: str = ""
    remote: str = ""
    queued_bytes: int = 0
    local_port: int = 0
    remote_port: int = 0
    family: int = int(socket.AF_INET)
    received_ago_ms: int = 0
    unsent_bytes: int = 0


def request(family: int) -> bytes:
    """Return the netlink message that asks for all connections of an address family."""
    body = struct.pack(
        "=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ESTABLISHED_AND_CLOSE_WAIT
    )
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body


def request_one(known: Connection, sequence: int) -> bytes:
    """Return the netlink message that asks for one known connection."""
    ends = _PORTS.pack(known.local_port, known.remote_port)
    ends += b"".join(_packed(address, known.family) for address in (known.local, known.remote))
    ends += struct.pack("=IQ", 0, known.cookie)
    wanted = struct.pack("=BBBBI", known.family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ANY_STATE)
    body = wanted + ends
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_ONE, sequence, 0) + body


def _packed(address: str, family: int) -> bytes:
    """Return an address as the kernel's 16 bytes."""
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address)
    raw = socket.inet_pton(socket.AF_INET, address)
    return _MAPPED + raw if family == socket.AF_INET6 else raw.ljust(16, b"\0")


def parse_reply(data: bytes, wanted: Container[int] | None = None) -> tuple[list[Connection], bool]:
    """Return the connections in one netlink datagram, and whether it was the last.

    Args:
        data: The datagram.
        wanted: Inodes of the sockets to return; None for all.

    Raises:
        OSError: The kernel refused.
        ValueError: The datagram is cut short.
    """
    found: list[Connection] = []
    place = 0
    while place + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, place)
        if length < _HEADER.size or place + length > len(data):
            raise ValueError(f"netlink message of {length} bytes at {place} of {len(data)}")
        if kind == _DONE:
            return found, True
        if kind == _ERROR:
            number = -int(struct.unpack_from("=i", data, place + _HEADER.size)[0])
            raise OSError(number, os.strerror(number))
        connection = _connection(data[place + _HEADER.size : place + length], wanted)
        if connection is not None:
            found.append(connection)
        place += (length + 3) & ~3
    return found, False


def _connection(message: bytes, wanted: Container[int] | None) -> Connection | None:
    if len(message) < _DIAG.size:
        return None
    family, ports, local, remote, cookie, queued, inode = _DIAG.unpack_from(message)
    if wanted is not None and inode not in wanted:
        return None
    for kind, value in _attributes(message[_DIAG.size :]):
        if kind == _INET_DIAG_INFO and len(value) >= _SHORTEST_INFO:
            ago, rtt, retransmits, acked, received, unsent, busy, held = _INFO.unpack_from(
                value.ljust(_INFO.size, b"\0")
            )
            local_port, remote_port = _PORTS.unpack(ports)
            return Connection(
                inode=inode,
                cookie=cookie,
                rtt_us=rtt,
                retransmits=retransmits,
                bytes_acked=acked,
                bytes_received=received,
                busy_us=busy,
                receive_limited_us=held,
                local=_address(family, local),
                remote=_address(family, remote),
                queued_bytes=queued,
                local_port=local_port,
                remote_port=remote_port,
                family=family,
                received_ago_ms=ago,
                unsent_bytes=unsent,
            )
    return None


def _address(family: int, raw: bytes) -> str:
    if family == socket.AF_INET6 and not raw.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET6, raw)
    return socket.inet_ntop(socket.AF_INET, raw[-4:] if family == socket.AF_INET6 else raw[:4])


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, place)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[place + _ATTRIBUTE.size : place + length]
        place += (length + 3) & ~3


def socket_inodes(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process holds.

    Raises:
        OSError: The process is gone or belongs to somebody else.
    """
    inodes: set[int] = set()
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):  # noqa: PTH208 - a Path per descriptor costs more than the call
        try:
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(int(target[8:-1]))
    return inodes


class SocketReader:
    """Reads the connections of a few processes again and again.

    A dump finds them: it walks through the kernel's whole table (3 to 7 ms). Reading a known one takes about 20 µs.

    Raises:
        OSError: The kernel has no sock_diag, or we may not use it.
    """

    def __init__(self) -> None:
        self._socket = self._open()

    @staticmethod
    def _open() -> socket.socket:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        made.settimeout(_PATIENCE_S)
        return made

    def find(self, pids: Iterable[int]) -> dict[int, list[Connection]]:
        """Return the connections of each process; one that is gone or belongs to another user has none.

        Raises:
            OSError: The kernel refused or did not answer.
        """
        inodes: dict[int, set[int]] = {}
        for pid in pids:
            inodes[pid] = set()
            with contextlib.suppress(OSError):
                inodes[pid] = socket_inodes(pid)
        everybody = set().union(*inodes.values())
        found = self.dump(everybody) if everybody else []
        return {pid: [one for one in found if one.inode in own] for pid, own in inodes.items()}

    def dump(self, wanted: Container[int]) -> list[Connection]:
        """Return the connections with these inodes.

        Raises:
            OSError: The kernel refused or did not answer.
        """
        found: list[Connection] = []
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                self._socket.send(request(family))
                done = False
                while not done:
                    part, done = parse_reply(self._socket.recv(_BUFFER_BYTES), wanted)
                    found += part
        except OSError:
            self._again()
            raise
        return found

    def again(self, known: Sequence[Connection]) -> Mapping[int, Connection]:
        """Return known connections as they are now, by cookie; closed ones are missing.

        Raises:
            OSError: The kernel did not answer.
        """
        found: dict[int, Connection] = {}
        for first in range(0, len(known), _AT_ONCE):
            some = known[first : first + _AT_ONCE]
            try:
                self._socket.send(b"".join(request_one(one, number) for number, one in enumerate(some)))
                for _ in some:
                    data = self._socket.recv(_BUFFER_BYTES)
                    with contextlib.suppress(FileNotFoundError):  # closed
                        found.update((one.cookie, one) for one in parse_reply(data)[0])
            except OSError:
                self._again()
                raise
        return found

    def _again(self) -> None:
        """Open a new socket, so late answers are not taken for those of later questions."""
        self._socket.close()
        self._socket = self._open()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


# --- links ---


class _Link:
    """Totals of one worker with one address."""

    def __init__(self, writer: SampleWriter, device: str, period_ns: int, began_ns: int) -> None:
        made = [(Channel(name, device, unit, resolution_ns=period_ns), scale) for name, unit, scale in _CHANNELS]
        self._tracks = [Track(writer, writer.declare(channel, "counter", scale)) for channel, scale in made]
        self._total = [0] * len(_CHANNELS)
        for track in self._tracks:
            track.put(began_ns, 0)

    def put(self, now_ns: int, moves: Sequence[tuple[Connection, Connection]], since_us: int = 0) -> None:
        """Add what its connections moved; the busiest one counts as the link's busy time."""
        sent = received = retransmits = queued = 0
        busiest = (0, 0)
        for before, one in moves:
            grown = max(0, one.bytes_acked - before.bytes_acked)
            sent += grown
            received += max(0, one.bytes_received - before.bytes_received)
            retransmits += max(0, one.retransmits - before.retransmits)
            queued += one.queued_bytes
            if max(grown, one.queued_bytes) >= LEAST_LOAD_BYTES:
                held = max(0, one.receive_limited_us - before.receive_limited_us)
                busiest = max(busiest, (max(0, one.busy_us - before.busy_us - held), one.rtt_us))
        busy, rtt = busiest
        moved = (sent, received, retransmits, busy, queued * since_us, rtt * busy)
        self._total = [total + more for total, more in zip(self._total, moved, strict=True)]
        for track, total in zip(self._tracks, self._total, strict=True):
            track.put(now_ns, total)

    def mark(self) -> None:
        for track in self._tracks:
            track.mark()


class Links:
    """Channels of one worker, device "<pid>/<local address>/<remote address>", for addresses of other hosts.

    "link_sent", "link_received" (bytes per second acknowledged and received), "link_retransmits" (segments per second),
    "link_busy" (seconds per second in which a connection with a load had data under way and the other side's window
    did not hold it back), "link_queued" (bytes not yet acknowledged, mean) and "link_busy_rtt" (round trip times busy
    time). An address appears once data moves.
    """

    def __init__(self, writer: SampleWriter, pid: int, period_ns: int) -> None:
        self._writer = writer
        self._pid = pid
        self._period_ns = period_ns
        self._links: dict[tuple[str, str], _Link] = {}
        self._at_ns = 0

    def update(self, now_ns: int, seen: Sequence[tuple[Connection | None, Connection]]) -> None:
        """Add what moved; each connection as it was (None: it is new, and counts from now on) and as it is."""
        moves: dict[tuple[str, str], list[tuple[Connection, Connection]]] = {key: [] for key in self._links}
        for before, one in seen:
            key = (one.local, one.remote)
            if before is not None and (key in moves or (_moved(before, one) and self._is_new_link(key))):
                moves.setdefault(key, []).append((before, one))
        since_us = (now_ns - self._at_ns) // 1000 if self._at_ns else 0
        for key, pairs in moves.items():
            if key not in self._links:
                device = f"{self._pid}/{key[0]}/{key[1]}"
                self._links[key] = _Link(self._writer, device, self._period_ns, self._at_ns)
            self._links[key].put(now_ns, pairs, since_us)
        self._at_ns = now_ns

    def _is_new_link(self, key: tuple[str, str]) -> bool:
        local, remote = key
        inside = not local or remote in (local, "::1") or remote.startswith("127.")
        return not inside and len(self._links) < _MOST_LINKS

    def mark(self) -> None:
        """Write down how long the present values have held."""
        for link in self._links.values():
            link.mark()


def _moved(before: Connection, one: Connection) -> bool:
    grown = one.bytes_acked - before.bytes_acked + one.bytes_received - before.bytes_received
    return max(grown, one.queued_bytes) >= LEAST_LOAD_BYTES


class LinkProbe:
    """Samples the links of workers.

    Raises:
        OSError: The kernel has no sock_diag, or we may not use it.
    """

    period_ns = 50_000_000
    refresh_ns = 1_000_000_000

    def __init__(self, writer: SampleWriter, pids: Sequence[int]) -> None:
        self._writer = writer
        self._reader = SocketReader()
        self._links = {pid: Links(writer, pid, self.period_ns) for pid in pids}
        self._inodes: dict[int, set[int]] = {pid: set() for pid in pids}
        self._last: dict[int, Connection] = {}
        self._refresh_due_ns = 0
        try:
            self._reader.dump(())
        except OSError:
            self._reader.close()
            raise

    def read(self) -> None:
        """Sample every worker."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._refresh_due_ns:
            self._refresh_due_ns = now_ns + self.refresh_ns
            self._refresh()
        connections = self._reader.dump(set().union(*self._inodes.values()))
        for pid, links in self._links.items():
            own = [one for one in connections if one.inode in self._inodes[pid]]
            links.update(now_ns, [(self._last.get(one.cookie), one) for one in own])
        self._last = {one.cookie: one for one in connections}

    def _refresh(self) -> None:
        for pid in self._inodes:
            try:
                self._inodes[pid] = socket_inodes(pid)
            except (ProcessLookupError, FileNotFoundError):
                self._inodes[pid] = set()
            except PermissionError:
                self._writer.note(f"tcp of {pid} left out: its descriptors belong to another user")

    def close(self) -> None:
        """Write down the last moment and close."""
        for links in self._links.values():
            links.mark()
        self._reader.close()
