"""Hop-limited probes that find the router at each hop of a connection and test the connection.

A probe is a TCP connection attempt with the very ports of the later connection and a small time to live; the router at
which it ends answers "time exceeded", which Linux hands to the socket. No right is needed.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass

_IP_RECVERR = 11
_TIME_EXCEEDED = 11
AT_ONCE = 128
FULL_TTL = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a probe.

    Attributes:
        router: Address of the router that answered; empty: none did.
        connected: The target itself answered.
        busy: The port is in use, so nothing was sent.
    """

    router: str = ""
    connected: bool = False
    busy: bool = False


Probe = tuple[int, int]  # source port, time to live


def probe(source: str, target: tuple[str, int], probes: Iterable[Probe], timeout_s: float = 0.4) -> dict[Probe, Answer]:
    """Send probes, at most `AT_ONCE` together, and wait for their answers.

    Args:
        source: Own IPv4 address.
        target: Address and TCP port on which the other host listens.
        probes: Source port and time to live of each; one port's probes go one after the other.
        timeout_s: How long to wait for each; more than the longest round trip.

    Returns:
        The outcome of each.
    """
    rounds: list[list[Probe]] = []
    for item in probes:
        place = next((r for r in rounds if len(r) < AT_ONCE and all(port != item[0] for port, _ in r)), None)
        if place is None:
            rounds.append([item])
        else:
            place.append(item)
    answers: dict[Probe, Answer] = {}
    for together in rounds:
        answers |= _together(source, target, together, timeout_s)
    return answers


def _together(source: str, target: tuple[str, int], probes: list[Probe], timeout_s: float) -> dict[Probe, Answer]:
    poll = select.poll()
    open_: dict[int, tuple[socket.socket, Probe]] = {}
    answers = {item: Answer() for item in probes}
    began = time.monotonic()
    try:
        for item in probes:
            sock = _begin(source, target, item)
            if sock is None:
                answers[item] = Answer(busy=True)
            else:
                open_[sock.fileno()] = (sock, item)
                poll.register(sock, select.POLLOUT | select.POLLERR)
        while open_ and (left := began + timeout_s - time.monotonic()) > 0:
            for number, _ in poll.poll(left * 1000):
                sock, item = open_.pop(number)
                poll.unregister(number)
                answers[item] = _answer(sock)
                _end(sock)
    finally:
        for sock, _ in open_.values():
            _end(sock)
    return answers


def _begin(source: str, target: tuple[str, int], item: Probe) -> socket.socket | None:
    port, ttl = item
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
        sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        sock.bind((source, port))
        code = sock.connect_ex(target)
    except OSError as error:
        code = error.errno or errno.EIO
    if code in (0, errno.EINPROGRESS):
        return sock
    sock.close()
    return None


def _answer(sock: socket.socket) -> Answer:
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code == 0:
        return Answer(connected=True)
    with contextlib.suppress(OSError):
        _, ancillary, _, _ = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE)
        for level, kind, data in ancillary:
            if level == socket.IPPROTO_IP and kind == _IP_RECVERR and len(data) >= 24:
                _, _, icmp, _, _, _, _ = struct.unpack_from("IBBBBII", data)
                if icmp == _TIME_EXCEEDED:
                    return Answer(router=socket.inet_ntoa(data[20:24]))
    return Answer()


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # reset: no TIME_WAIT keeps the port
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
