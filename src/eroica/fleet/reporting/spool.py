"""Where a run's pieces wait: `fleet/` in the run directory.

    fleet/run.json            who this run is
    fleet/whose               hash of the service and the token that its pieces are for
    fleet/state.json          up to where iteration times were taken by the service
    fleet/beats/<run>         what is left to be told of a run that is over: iteration times, hosts, its end
    fleet/packed              one line for each piece that was packed: key, signature of what it was made from
    fleet/outbox/<n>-<name>   pieces that the service has not confirmed yet
    fleet/refused/<name>      pieces that it will never take, and why

A piece is in the outbox before `packed` says so, and leaves it only after the service has confirmed it. Each file
appears whole; so a kill between any two steps costs at most a second sending of the same bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from eroica import __version__
from eroica.archive.load import MOST_JSON_BYTES
from eroica.fleet.records import Beat, Piece, RunFacts
from eroica.wire.codec import UNDECODABLE
from eroica.wire.places import private_directory, private_file, read_private, write_whole

log = logging.getLogger("eroica.fleet")

DIRECTORY = "fleet"
Record = TypeVar("Record")
_MOST_PIECE_BYTES = 32_000_000
_MOST_JOURNAL_BYTES = 256_000_000


class SendState(msgspec.Struct, frozen=True, kw_only=True):
    """What the service has of a run's course.

    Attributes:
        run: Which run.
        until_s: End of the last stretch of iteration times that was taken, seconds after the start.
        hosts: Hash of the hosts that were told last.
        told: Signature of the files that the last beat was made from.
        began: When the collector began to count this run's iterations, as its iteration times say; 0 before they did.
        since: What was written before is an earlier run's, seconds since 1970; 0 where nothing of one lies here.
        heard: Windows that were asked for and that the job has heard of, which the service does not know yet.
    """

    run: str = ""
    until_s: float = -1.0
    hosts: str = ""
    told: str = ""
    began: float = 0.0
    since: float = 0.0
    heard: tuple[int, ...] = ()


class _Begun(msgspec.Struct, frozen=True):
    """What `run.json` says beside the facts: see `SendState`."""

    since: float = 0.0


class KeptBeat(msgspec.Struct, frozen=True, kw_only=True):
    """The last beat of a run.

    Attributes:
        told: Signature of the files that it was made from.
    """

    beat: Beat
    told: str = ""

    def aged(self) -> Beat:
        """The beat as it is sent now."""
        return msgspec.structs.replace(self.beat, age_s=self.beat.age_s + max(0.0, time.time() - self.beat.at))


class Spool:
    """The spool of one run directory.

    Args:
        run: The run directory.

    Attributes:
        next: While this file is there, somebody who knows a newer collector waits for the lock.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.root = private_directory(run / DIRECTORY)
        self.next = self.root / "next"
        self._outbox = private_directory(self.root / "outbox")
        self._packed: dict[str, str] = {}
        self._next = 0
        self.read()

    def read(self) -> None:
        """Learn what was packed already."""
        self._packed = dict(self._lines())
        numbers = [int(path.name.partition("-")[0]) for path in self.waiting_files()]
        self._next = max(numbers, default=-1) + 1

    def claim(self) -> int | None:
        """A lock on the spool, to be kept open; None while another process has it, -1 where there are no locks.

        Two at once would cost only doubled work, so it matters little that locks are not dependable everywhere.
        """
        handle = private_file(self.root / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return None
            return -1  # a file system without locks
        return handle

    # ------------------------------------------------------------------ who this run is

    def begin(self, job: str, host: str, commit: str, began: float, since: float = 0.0) -> RunFacts:
        """Draw the facts of another run; the journal of what was packed of the one before stays."""
        facts = RunFacts(
            run=secrets.token_hex(16), job=job, began=began, host=host, commit=commit, eroica_version=__version__
        )
        write_whole(self.root / "run.json", msgspec.json.encode({**msgspec.structs.asdict(facts), "since": since}))
        return facts

    def known_facts(self) -> RunFacts | None:
        """The run's facts, None before they were drawn."""
        return read_record(self.root / "run.json", RunFacts)

    def is_for(self, whose: str) -> bool:
        """Whether its pieces are for this service and project, or nobody has said whose they are."""
        try:
            known = read_private(self.root / "whose").decode("ascii", "replace")
        except OSError:
            return True
        return known == whose

    def belongs_to(self, whose: str) -> None:
        """Write down whom its pieces are for."""
        write_whole(self.root / "whose", whose.encode())

    def state(self, run: str) -> SendState:
        """What the service has of this run's course."""
        state = read_record(self.root / "state.json", SendState)
        if state is not None and state.run == run:
            return state
        begun = read_record(self.root / "run.json", _Begun) or _Begun()
        return SendState(run=run, since=begun.since)

    def save_state(self, state: SendState) -> None:
        """Write that down."""
        write_whole(self.root / "state.json", msgspec.json.encode(state))

    def taken(self, beat: Beat, told: str) -> None:
        """The service has a beat, which was made from files of this signature."""
        known = self.known_facts()
        if known is None or known.run != beat.facts.run:
            return  # of a run that was closed
        state = self.state(known.run)
        changed = msgspec.structs.replace(
            state,
            until_s=beat.points.at_s[-1] if beat.points.at_s else state.until_s,
            hosts=digest_of(beat.hosts) if beat.hosts is not None else state.hosts,
            told=told,
            heard=tuple(order for order in state.heard if order not in (beat.orders or ())),
        )
        if changed != state:
            self.save_state(changed)

    def close_run(self) -> None:
        """The next run in this directory is another one, and what lies there goes; pieces and beats that wait stay."""
        for name in ("run.json", "state.json", "packed"):
            (self.root / name).unlink(missing_ok=True)
        self._packed = {}

    # ------------------------------------------------------------------ last beats

    def kept_beat(self) -> KeptBeat | None:
        """One that waits; None without any."""
        for path in self._beats():
            try:
                return msgspec.msgpack.decode(read_private(path, _MOST_PIECE_BYTES), type=KeptBeat)
            except UNDECODABLE as error:
                log.warning("the last beat of a run is none and is not told: %s", error)
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("the last beat of a run cannot be read: %s", error)
        return None

    def drop_beat(self, run: str) -> None:
        """The last beat of this run needs not be told."""
        (self.root / "beats" / run).unlink(missing_ok=True)

    def _beats(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(path for path in (self.root / "beats").iterdir() if not path.name.startswith("."))
        return []

    # ------------------------------------------------------------------ pieces

    def is_packed(self, key: str, signature: str) -> bool:
        """What has this signature was packed under the key."""
        return self._packed.get(key) == signature

    def pack(self, piece: Piece, signature: str) -> None:
        """Keep a piece until it is confirmed.

        Raises:
            OSError: The disk is full; nothing is lost, for it can be packed again.
        """
        write_whole(self._outbox / f"{self._next:08d}-{piece.name}", msgspec.msgpack.encode(piece), on_disk=True)
        self._next += 1
        self._append(f"{piece.key} {signature}\n")
        self._packed[piece.key] = signature

    def waiting(self, most: int, most_bytes: int, but: Container[Path] = ()) -> list[tuple[Path, Piece]]:
        """The oldest pieces that are not confirmed, as many as fit; at least one if there is any.

        Args:
            most: Pieces.
            most_bytes: Their bodies' size.
            but: Pieces that are not looked at.
        """
        found: list[tuple[Path, Piece]] = []
        size = 0
        for path in self.waiting_files():
            if path in but:
                continue
            piece = self._read_piece(path)
            if piece is None:
                continue
            size += len(piece.body)
            if found and (len(found) >= most or size > most_bytes):
                break
            found.append((path, piece))
        return found

    def is_empty(self, but: Container[Path] = ()) -> bool:
        """Nothing waits, or nothing but these."""
        return all(path in but for path in self.waiting_files()) and self.kept_beat() is None

    def refuse(self, path: Path, why: str) -> None:
        """The service will never take this one; it is kept aside with the reason."""
        self.say_why(path.name, why)
        with contextlib.suppress(FileNotFoundError):
            path.replace(self.root / "refused" / path.name)

    def say_why(self, name: str, why: str) -> None:
        """Write down why something is not reported."""
        aside = private_directory(self.root / "refused")
        write_whole(aside / f"{name.replace('/', '-')}.why", why.encode("utf-8", "replace"))
        log.warning("%s is not reported: %s", name, why)

    def readmit(self) -> None:
        """What was refused waits again: a person says so, after something was mended."""
        aside = self.root / "refused"
        for path in sorted(aside.iterdir()) if aside.is_dir() else ():
            if path.suffix == ".why":
                path.unlink()
            else:
                path.replace(self._outbox / path.name)

    # ------------------------------------------------------------------

    def waiting_files(self) -> list[Path]:
        """Pieces that wait, the oldest first."""
        return sorted(path for path in self._outbox.iterdir() if path.name[:1].isdecimal())

    def _read_piece(self, path: Path) -> Piece | None:
        try:
            return msgspec.msgpack.decode(read_private(path, _MOST_PIECE_BYTES), type=Piece)
        except FileNotFoundError:
            return None
        except UNDECODABLE as error:
            self.refuse(path, f"it cannot be read: {error}")
            return None

    def _append(self, line: str) -> None:
        with os.fdopen(private_file(self.root / "packed", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            file.write(line.encode())

    def _lines(self) -> Iterator[tuple[str, str]]:
        with contextlib.suppress(FileNotFoundError):
            for line in read_private(self.root / "packed", _MOST_JOURNAL_BYTES).decode("utf-8", "replace").split("\n"):
                key, _, signature = line.partition(" ")
                if signature:
                    yield key, signature


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """A record of a JSON file; None where it cannot be read."""
    with contextlib.suppress(OSError, *UNDECODABLE):
        return msgspec.json.decode(read_private(path, MOST_JSON_BYTES), type=kind)
    return None


def digest_of(hosts: Iterable[str]) -> str:
    """A name of these hosts."""
    return hashlib.sha256("\n".join(hosts).encode("utf-8", "replace")).hexdigest()[:16]


def has_spool(run: Path) -> bool:
    """Whether somebody reports from this run directory, or did."""
    return (run / DIRECTORY).is_dir()
