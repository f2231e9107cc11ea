"""What the kernel knows of the workers' own TCP connections: `TCP_INFO` of every socket over netlink (sock_diag).

Loopback and interfaces are shared by everything on a host; these numbers belong to one worker each. No rights are
needed beyond seeing the worker's /proc/<pid>/fd, and only sockets of our own network namespace are seen.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Container, Iterator
from typing import NamedTuple

from eroica.hardware.links import Links
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
_DIAG_BYTES = 72
_INODE = struct.Struct("=I")
_QUEUE = struct.Struct("=I")
_PORTS = struct.Struct("!HH")
_MAPPED = bytes(10) + b"\xff\xff"
_COOKIE = struct.Struct("=Q")
_ATTRIBUTE = struct.Struct("=HH")
_BUFFER_BYTES = 1 << 17


class Connection(NamedTuple):
    """One TCP socket's totals; times in microseconds, bytes as acknowledged by and received from the other side.

    `queued_bytes` is what the other side has not acknowledged yet, sent or not (`unsent_bytes`); `unread_bytes` is what
    has arrived and the process has not read; `received_ago_ms` says how long ago data arrived last. The kernel counts
    busy time in ticks (1 to 10 ms), whatever its unit. Addresses have no ports; IPv4 inside IPv6 is written as IPv4.
    """

    inode: int
    cookie: int
    rtt_us: int
    retransmits: int
    bytes_acked: int
    bytes_received: int
    busy_us: int
    receive_limited_us: int
    send_buffer_limited_us: int
    local: str = ""
    remote: str = ""
    queued_bytes: int = 0
    least_rtt_us: int = 0
    local_port: int = 0
    remote_port: int = 0
    unread_bytes: int = 0
    family: int = int(socket.AF_INET)
    received_ago_ms: int = 0
    unsent_bytes: int = 0


def request(family: int) -> bytes:
    """The netlink message that asks for all connections of an address family with their `TCP_INFO`."""
    body = struct.pack(
        "=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ESTABLISHED_AND_CLOSE_WAIT
    )
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body


def request_one(known: Connection, sequence: int) -> bytes:
    """The message that asks for one connection again: 20 µs, where a dump walks through all of the kernel's table."""
    ends = _PORTS.pack(known.local_port, known.remote_port)
    ends += b"".join(_packed(address, known.family) for address in (known.local, known.remote))
    ends += struct.pack("=IQ", 0, known.cookie)
    wanted = struct.pack("=BBBBI", known.family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ANY_STATE)
    body = wanted + ends
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_ONE, sequence, 0) + body


def _packed(address: str, family: int) -> bytes:
    """16 bytes, as the kernel holds an address of this family."""
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address)
    raw = socket.inet_pton(socket.AF_INET, address)
    return _MAPPED + raw if family == socket.AF_INET6 else raw.ljust(16, b"\0")


def parse_reply(data: bytes, wanted: Container[int] | None = None) -> tuple[list[Connection], bool]:
    """(connections in one netlink datagram, whether it was the last).

    Args:
        data: As received.
        wanted: Inodes of the sockets to look at; None for all.

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
    if len(message) < _DIAG_BYTES:
        return None
    inode = _INODE.unpack_from(message, 68)[0]
    if wanted is not None and inode not in wanted:
        return None
    cookie = _COOKIE.unpack_from(message, 44)[0]
    for kind, value in _attributes(message[_DIAG_BYTES:]):
        if kind == _INET_DIAG_INFO and len(value) >= 104:
            ends = (_address(message, 8), _address(message, 24))
            known = _from_info((inode, cookie), value.ljust(192, b"\0"), ends, _QUEUE.unpack_from(message, 60)[0])
            ports, unread = _PORTS.unpack_from(message, 4), _QUEUE.unpack_from(message, 56)[0]
            return known._replace(local_port=ports[0], remote_port=ports[1], unread_bytes=unread, family=message[0])
    return None


def _address(message: bytes, place: int) -> str:
    raw = message[place : place + 16]
    if message[0] == socket.AF_INET6 and not raw.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET6, raw)
    return socket.inet_ntop(socket.AF_INET, raw[-4:] if message[0] == socket.AF_INET6 else raw[:4])


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, place)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[place + _ATTRIBUTE.size : place + length]
        place += (length + 3) & ~3


def _from_info(name: tuple[int, int], info: bytes, ends: tuple[str, str], queued_bytes: int) -> Connection:
    acked, received = struct.unpack_from("=QQ", info, 120)
    busy, receive_limited, buffer_limited = struct.unpack_from("=QQQ", info, 168)
    return Connection(
        inode=name[0],
        cookie=name[1],
        rtt_us=struct.unpack_from("=I", info, 68)[0],
        retransmits=struct.unpack_from("=I", info, 100)[0],
        bytes_acked=acked,
        bytes_received=received,
        busy_us=busy,
        receive_limited_us=receive_limited,
        send_buffer_limited_us=buffer_limited,
        local=ends[0],
        remote=ends[1],
        queued_bytes=queued_bytes,
        least_rtt_us=struct.unpack_from("=I", info, 148)[0],
        received_ago_ms=struct.unpack_from("=I", info, 52)[0],
        unsent_bytes=struct.unpack_from("=I", info, 144)[0],
    )


def socket_inodes(pid: int) -> set[int]:
    """Inodes of the sockets a process holds.

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


class _Totals:
    """One worker's totals over connections that come and go, and its channels."""

    _FIELDS = (
        ("tcp_sent", "B/s", "bytes_acked", 1.0),
        ("tcp_received", "B/s", "bytes_received", 1.0),
        ("tcp_retransmits", "1/s", "retransmits", 1.0),
        ("tcp_busy", "s/s", "busy_us", 1e-6),
        ("tcp_receiver_limited", "s/s", "receive_limited_us", 1e-6),
        ("tcp_buffer_limited", "s/s", "send_buffer_limited_us", 1e-6),
    )

    def __init__(self, writer: SampleWriter, pid: int, period_ns: int) -> None:
        self.inodes: set[int] = set()
        self._writer = writer
        self._last: dict[int, Connection] = {}
        self._total = [0] * len(self._FIELDS)
        channels = [Channel(name, str(pid), unit, resolution_ns=period_ns) for name, unit, _, _ in self._FIELDS]
        numbers = [writer.declare(one, "counter", row[3]) for one, row in zip(channels, self._FIELDS, strict=True)]
        self._tracks = [Track(writer, number) for number in numbers]
        self._links = Links(writer, pid, period_ns)
        self._rtt = writer.declare(Channel("tcp_rtt", str(pid), "s", resolution_ns=period_ns), scale=1e-6)

    def update(self, now_ns: int, connections: list[Connection]) -> None:
        """Add what moved since the last time; a connection first seen counts from now on."""
        slowest = -1
        known = self._last
        self._links.update(now_ns, [(known.get(one.cookie), one) for one in connections])
        self._last = {}
        for one in connections:
            before = known.get(one.cookie)
            self._last[one.cookie] = one
            if before is None or one[2:9] == before[2:9]:
                continue
            slowest = max(slowest, one.rtt_us)
            for index, (_, _, field, _) in enumerate(self._FIELDS):
                self._total[index] += max(0, getattr(one, field) - getattr(before, field))
        for track, total in zip(self._tracks, self._total, strict=True):
            track.put(now_ns, total)
        if slowest >= 0:
            self._writer.add(self._rtt, now_ns, slowest)

    def mark(self) -> None:
        for track in self._tracks:
            track.mark()
        self._links.mark()


class TcpProbe:
    """TCP channels of the workers, device "<pid>".

    "tcp_sent" and "tcp_received" (bytes per second acknowledged and received), "tcp_retransmits" (segments per second),
    "tcp_busy", "tcp_receiver_limited", "tcp_buffer_limited" (seconds per second with data under way, held back by the
    other side's window, held back by our send buffer; summed over connections) and "tcp_rtt" (the slowest smoothed
    round trip of the connections that moved); and those of `eroica.hardware.links` for each address talked to.

    Args:
        writer: Where to.

    Raises:
        OSError: The kernel has no sock_diag, or we may not use it.
    """

    period_ns = 50_000_000
    refresh_ns = 1_000_000_000

    def __init__(self, writer: SampleWriter) -> None:
        self._writer = writer
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        self._socket.settimeout(0.5)
        self._workers: dict[int, _Totals] = {}
        self._refresh_due_ns = 0
        try:
            self.connections()
        except OSError:
            self._socket.close()
            raise

    def watch(self, pid: int) -> None:
        """Also sample this worker's connections."""
        self._workers[pid] = _Totals(self._writer, pid, self.period_ns)

    def connections(self, wanted: Container[int] | None = None) -> list[Connection]:
        """TCP connections of this network namespace, of these inodes only if given.

        Raises:
            OSError: The kernel refused or did not answer.
        """
        found: list[Connection] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            self._socket.send(request(family))
            done = False
            while not done:
                part, done = parse_reply(self._socket.recv(_BUFFER_BYTES), wanted)
                found += part
        return found

    def read(self) -> None:
        """Sample every worker."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._refresh_due_ns:
            self._refresh_due_ns = now_ns + self.refresh_ns
            self._refresh()
        connections = self.connections(set().union(*(totals.inodes for totals in self._workers.values())))
        for totals in self._workers.values():
            totals.update(now_ns, [one for one in connections if one.inode in totals.inodes])

    def _refresh(self) -> None:
        for pid, totals in self._workers.items():
            try:
                totals.inodes = socket_inodes(pid)
            except (ProcessLookupError, FileNotFoundError):
                totals.inodes = set()
            except PermissionError:
                self._writer.note(f"tcp of {pid} left out: its descriptors belong to another user")

    def close(self) -> None:
        """Write down the last moment and close."""
        for totals in self._workers.values():
            totals.mark()
        self._socket.close()
