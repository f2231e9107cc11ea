"""Where the job's collector listens, as files in the run directory.

    <run>/hosts/<host>.json   for that host's agent and commands: its own collector, or the one it was sent to
    <run>/collector.json      for everybody who sees the run directory

Hosts may share the run directory, so a loopback address counts only where it was written.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from urllib.parse import quote

import msgspec

from eroica.errors import InputError
from eroica.wire.files import write_whole
from eroica.wire.network import endpoint_of, is_loopback, loopback_domain
from eroica.wire.places import file_name, host_name, read_private

AWAY = "away"
"""File in the runtime directory while this host has no worker 0: the job's verdict is another host's to give."""
LINK_FILE = "live.html"
"""File in the run directory that leads a browser of this host to the live page."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a collector listens.

    Attributes:
        pid: Its process.
        host: Its host's name.
        domain: What shares its loopback interface; see `eroica.wire.network.loopback_domain`.
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
