"""The kernel's routing answers: the next hop of a connection by its ports, and notifications of changes.

Asked over rtnetlink (RTM_GETROUTE with protocol and ports), so it costs no packet and needs no right.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from c4p.errors import NoPath

_NETLINK_ROUTE = 0
_GROUPS = 0x1 | 0x40  # RTMGRP_LINK, RTMGRP_IPV4_ROUTE
_RTM_GETROUTE, _NLMSG_ERROR, _NLM_F_REQUEST = 26, 2, 1
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY, _RTA_PROTOCOL, _RTA_SPORT, _RTA_DPORT = 1, 2, 4, 5, 27, 28, 29
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, protocol, scope, type, flags
_LOCAL = 2  # RTN_LOCAL


@dataclass(frozen=True, slots=True)
class NextHop:
    """The next hop of a packet: an interface, and a gateway (empty: the target itself)."""

    interface: str
    gateway: str
    local: bool


def next_hops(source: str, target: str, target_port: int, ports: Iterable[int]) -> dict[int, NextHop]:
    """Return the next hop of a TCP connection by its source port.

    Args:
        source: Own IPv4 address.
        target: IPv4 address of the other host.
        target_port: Its TCP port.
        ports: Source ports to ask for.

    Raises:
        NoPath: The kernel has no route.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        kernel.settimeout(2.0)
        return {port: _ask(kernel, source, target, port, target_port) for port in ports}


def address_toward(host: str) -> str:
    """Return this host's address toward another one, without sending a packet.

    Raises:
        NoPath: There is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            raise NoPath(f"no route to {host}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def index_of(interface: str) -> int:
    """Return the kernel's number of an interface; 0 if it is gone."""
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return 0


def _ask(kernel: socket.socket, source: str, target: str, port: int, target_port: int) -> NextHop:
    attributes = [
        (_RTA_DST, socket.inet_aton(target)),
        (_RTA_SRC, socket.inet_aton(source)),
        (_RTA_PROTOCOL, bytes([socket.IPPROTO_TCP])),
        (_RTA_SPORT, struct.pack("!H", port)),
        (_RTA_DPORT, struct.pack("!H", target_port)),
    ]
    body = _ROUTE.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    for kind, value in attributes:
        body += struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)
    kernel.send(_HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, port, 0) + body)
    answer = kernel.recv(65536)
    _, kind, *_ = _HEADER.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        if -code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES):
            raise NoPath(f"no route from {source} to {target}: {os.strerror(-code)}")
        raise OSError(-code, os.strerror(-code))
    *_, type_, _ = _ROUTE.unpack_from(answer, _HEADER.size)
    found = dict(_attributes(answer[_HEADER.size + _ROUTE.size :]))
    (index,) = struct.unpack("=I", found.get(_RTA_OIF, b"\0\0\0\0"))
    gateway = socket.inet_ntoa(found[_RTA_GATEWAY]) if _RTA_GATEWAY in found else ""
    name = ""
    with contextlib.suppress(OSError):
        name = socket.if_indextoname(index)
    return NextHop(name, gateway, type_ == _LOCAL)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind, data[at + 4 : at + length]
        at += length + -length % 4


class Watch:
    """A subscription to changes of this host's routes and links."""

    def __init__(self) -> None:
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        self._kernel.bind((0, _GROUPS))
        self._kernel.setblocking(False)

    def changed(self) -> bool:
        """Return True if something has changed since the last call."""
        changed = False
        while True:
            try:
                self._kernel.recv(65536)
            except BlockingIOError:
                return changed
            except OSError:  # more changes than the socket could hold
                return True
            changed = True

    def wait(self, timeout_s: float) -> None:
        """Wait until something changes or the time is over."""
        select.select([self._kernel], [], [], timeout_s)

    def close(self) -> None:
        """Close the subscription."""
        self._kernel.close()
