"""Where the job's collector listens, as files in the run directory.

    <run>/hosts/<host>.json   for that host's agent and commands: its own collector, or the one it was sent to
    <run>/collector.json      for everybody who sees the run directory

Hosts may share the run directory, so a loopback address counts only where it was written.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import re
import socket
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from eroica.errors import InputError
from eroica.wire.places import file_name, host_name, read_private, write_whole

#: Only to ask the kernel for a route; nothing is ever sent there (RFC 5737).
_ELSEWHERE = ("192.0.2.1", 9)
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
    import psutil  # here: it takes its time

    for one in chain.from_iterable(psutil.net_if_addrs().values()):
        if one.family == socket.AF_INET and not is_loopback(one.address):
            return str(one.address)
    raise OSError(f"no address of this host but loopback leads to {meeting_point or 'other hosts'}")


AWAY = "away"
"""File in the runtime directory while this host has no worker 0: the job's verdict is another host's to give."""
LINK_FILE = "live.html"
"""File in the run directory that leads a browser of this host to the live page."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a collector listens.

    Attributes:
        pid: Its process.
        host: Its host's name.
        domain: What shares its loopback interface; see `eroica.wire.address.loopback_domain`.
        page: What opens its live page and nothing else; "" where only `page_pass` of the token is known to do so.
    """

    url: str
    token: str
    pid: int
    host: str = ""
    domain: str = ""
    page: str = ""


def page_pass(token: str) -> str:
    """Made from the collector's token, and not to be turned back: opens the live page, nothing that agents may do."""
    return hmac.new(token.encode(), b"eroica live page", hashlib.sha256).hexdigest()


def page_link(address: Address) -> str:
    """The live page of the job: whoever opens this is let in (`eroica.collector.access`)."""
    return f"{address.url}/?token={quote(address.page or page_pass(address.token), safe='')}"


def announce(run: Path, address: Address, host: str) -> None:
    """Tell this host where the job's collector listens.

    Args:
        run: The run directory.
        address: Of the collector.
        host: This host's name.

    Raises:
        OSError: The disk is full or the directory cannot be written.
    """
    _write(run / "hosts" / f"{file_name(host)}.json", address)
    known = _read(run / "collector.json")
    if known is None or known.host in ("", host) or (known.host == address.host and not known.pid):
        announce_to_all(run, address)


def announce_to_all(run: Path, address: Address) -> None:
    """Tell everybody who sees the run directory."""
    _write(run / "collector.json", address)


def withdraw(run: Path, address: Address, host: str) -> None:
    """Take back what `announce` wrote; not what somebody else has written since."""
    for path in (run / "hosts" / f"{file_name(host)}.json", run / "collector.json"):
        known = _read(path)
        if known is not None and (known.host, known.pid) == (address.host, address.pid):
            path.unlink(missing_ok=True)
            if path.name == "collector.json":
                _forget_ways_in(run)


def _forget_ways_in(run: Path) -> None:
    """Neither Prometheus (`eroica.collector.scraping`) nor a browser has anything to ask here any more."""
    for name in ("prometheus.json", "metrics.token", LINK_FILE):
        (run / name).unlink(missing_ok=True)


def forget(run: Path, host: str) -> None:
    """Remove this host's addresses of an earlier job of the same name."""
    known = _read(run / "collector.json")
    if known is None or known.host in ("", host):
        (run / "collector.json").unlink(missing_ok=True)
        _forget_ways_in(run)
    (run / "hosts" / f"{file_name(host)}.json").unlink(missing_ok=True)


def read_address(run: Path, host: str = "") -> Address | None:
    """The collector of a run directory that can be reached from here; None if there is none (yet, or any more).

    Args:
        run: The run directory.
        host: This host's name, for who belongs to it: then another host's loopback address does not count, though two
            hosts of one network namespace could reach it. Default: the environment's, for who only asks.
    """
    name = file_name(host or host_name(os.environ))
    domain = loopback_domain()
    for path in (run / "hosts" / f"{name}.json", run / "collector.json"):
        address = _read(path)
        if address is None:
            continue
        is_ours = address.domain in ("", domain) and (not host or address.host in ("", host))
        if is_ours or not is_loopback(endpoint_of(address.url).host):
            return address
    return None


def read_own(run: Path, host: str) -> Address | None:
    """Where this host's agent reports to, here or elsewhere; None before anybody of this host has said so."""
    return _read(run / "hosts" / f"{file_name(host)}.json")


def read_shared(run: Path) -> Address | None:
    """What everybody who sees the run directory is told, reachable from here or not."""
    return _read(run / "collector.json")


def _read(path: Path) -> Address | None:
    try:
        address = msgspec.json.decode(read_private(path), type=Address)
        endpoint_of(address.url)
    except (OSError, InputError, ValueError, RecursionError):
        return None
    return address


def _write(path: Path, address: Address) -> None:
    write_whole(path, msgspec.json.format(msgspec.json.encode(address), indent=2) + b"\n")
