"""Addresses: what a collector's may look like, and which of ours the other hosts reach. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import socket
import struct
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from eroica.errors import InputError

#: Only to ask the kernel for a route; nothing is ever sent there (RFC 5737).
_ELSEWHERE = ("192.0.2.1", 9)
_SIOCGIFADDR = 0x8915
_TOKEN = re.compile(r"[!-~]{16,200}")
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}")


class Endpoint(NamedTuple):
    """Where something listens, or may listen."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The URL; IPv6 addresses in brackets."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def endpoint_of(url: str) -> Endpoint:
    """Host and port of a collector's URL.

    Raises:
        InputError: It is not `http://HOST:PORT`.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        host, port = "", 0
    endpoint = Endpoint(host, port)
    if not _HOST.fullmatch(host) or not port or url.rstrip("/").lower() != endpoint.url.lower():
        raise InputError(f"{url[:100]!r} is no address of a collector; it is like http://node0:29400")
    return endpoint


def good_token(token: str) -> bool:
    """Return True if a token may guard a collector: 16 to 200 printable characters without spaces."""
    return _TOKEN.fullmatch(token) is not None


def is_loopback(host: str) -> bool:
    """Return True if this names the host itself, whoever asks."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def loopback_domain() -> str:
    """Names what shares our loopback interface: this boot of this machine, this network namespace."""
    found = ""
    with contextlib.suppress(OSError):
        found = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        found += f"/{os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116 - the link itself is meant
    return found


def can_listen(endpoint: Endpoint) -> bool:
    """Return True if this is an address of ours and free."""
    try:
        listening(endpoint).close()
    except OSError:
        return False
    return True


def listening(endpoint: Endpoint) -> socket.socket:
    """A socket bound to one address, never to all of them.

    Raises:
        OSError: It is not ours, or taken.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def address_towards(host: str) -> str:
    """Our address on the way to a host; its own if that is us.

    Raises:
        OSError: The name is unknown, or there is no way.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, _ELSEWHERE[1], type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as way:
        way.connect(address)  # of a datagram socket: picks the route and sends nothing
        return str(way.getsockname()[0])


def _address_of(interface: str) -> str:
    """The IPv4 address of an interface.

    Raises:
        OSError: It has none, or is down.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


def outside_address(meeting_point: str = "") -> str:
    """An address of ours that other hosts reach.

    Args:
        meeting_point: A host that all of them reach, maybe us.

    Raises:
        OSError: There is none but loopback.
    """
    for host in (meeting_point, socket.gethostname(), _ELSEWHERE[0]):
        if not host:
            continue
        with contextlib.suppress(OSError):
            found = address_towards(host)
            if not is_loopback(found):
                return found
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            found = _address_of(name)
            if not is_loopback(found):
                return found
    raise OSError(f"no address of this host but loopback leads to {meeting_point or 'other hosts'}")
