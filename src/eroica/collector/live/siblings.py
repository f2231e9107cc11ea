"""Other jobs whose run directories lie beside this one: what became of them, and where their pages are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from eroica.errors import InputError
from eroica.model.words import clean, sentence
from eroica.wire.address import page_link, read_address
from eroica.wire.network import endpoint_of, is_loopback
from eroica.wire.places import belongs_to_us, host_name, read_private

_MOST_SEEN, _MOST_SHOWN = 500, 20
_MOST_BYTES = 8_000_000


class _Word(msgspec.Struct, frozen=True):
    """Fields that are read of a verdict."""

    verdict: str
    summary: str


class Sibling(msgspec.Struct, frozen=True, kw_only=True):
    """Another job.

    Attributes:
        name: Of its run directory.
        running: Its collector lives on this host.
        verdict: Its final word, "" before there is one.
        summary: The sentence to it.
        changed: When its directory was last written to, seconds since 1970.
    """

    name: str
    running: bool = False
    verdict: str = ""
    summary: str = ""
    changed: float = 0.0


def siblings(run: Path) -> tuple[Sibling, ...]:
    """Run directories beside `run`, the latest first; what cannot be read is left out."""
    found = sorted((each for path in _beside(run) if (each := _seen(path)) is not None), key=_rank, reverse=True)
    shown = (_judged(run.parent / each.name, each) for each in found[:_MOST_SHOWN])
    return tuple(each for each in shown if each is not None)


def sibling_link(run: Path, name: str) -> str | None:
    """The page of the job beside `run`; None if it has none that could be opened here."""
    path = run.parent / name
    return None if Path(name).name != name or path == run or not belongs_to_us(path) else _link(path)


def _link(path: Path) -> str | None:
    address = read_address(path)
    if address is None or not is_loopback(endpoint_of(address.url).host):
        return None
    lives = address.host in ("", host_name(os.environ)) and Path(f"/proc/{address.pid}").exists()
    return page_link(address) if lives else None


def _beside(run: Path) -> Iterable[Path]:
    try:
        with os.scandir(run.parent) as entries:
            near = [Path(entry.path) for entry, _ in zip(entries, range(_MOST_SEEN), strict=False) if entry.is_dir()]
    except OSError:
        return []
    return [path for path in near if path != run and path.name.isprintable() and belongs_to_us(path)]


def _seen(path: Path) -> Sibling | None:
    """A run directory without its verdict; None if it is none. Only that of the latest ones is worth reading."""
    for name in ("status.json", "verdict.json"):
        with contextlib.suppress(OSError, InputError):
            changed = (path / name).lstat().st_mtime
            return Sibling(name=path.name, running=_link(path) is not None, changed=changed)
    return None


def _rank(sibling: Sibling) -> tuple[bool, float]:
    return sibling.running, sibling.changed


def _judged(path: Path, sibling: Sibling) -> Sibling | None:
    """Add its final verdict to a job, if there is one; None where that cannot be read."""
    if sibling.running:
        return sibling
    try:
        word = msgspec.json.decode(read_private(path / "verdict.json", _MOST_BYTES), type=_Word)
    except FileNotFoundError:
        return sibling
    except (OSError, ValueError, RecursionError):
        return None
    return msgspec.structs.replace(sibling, verdict=clean(word.verdict, 20), summary=sentence(word.summary))
