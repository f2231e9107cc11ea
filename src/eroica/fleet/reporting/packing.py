"""From what lies in a run directory to pieces: verdicts, patterns by blocks of workers, looks at standstills."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from eroica.archive.bundle import BUNDLE_FILE, Bundle
from eroica.archive.check import MOST_JSON_BYTES, MOST_PATTERN_BYTES
from eroica.errors import InputError
from eroica.fleet.records import Kind, PatternBlock, Piece, Place, RunFacts, StandstillBody, VerdictBody, pack_body
from eroica.fleet.reporting.spool import Spool, now
from eroica.model.pattern import WorkerPattern
from eroica.model.rows import NUMBERS, RowTable
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.wire.codec import UNDECODABLE, decode_record
from eroica.wire.messages import JobStatus
from eroica.wire.places import private_file, read_private

log = logging.getLogger("eroica.fleet")

#: Workers in one block of patterns: enough that they share their call stacks, few enough for a small request.
BLOCK = 64
#: Patterns of a window without a verdict are waited for as long as new ones come, seconds.
_QUIET_S = 20.0
#: Whoever writes within the same tick of the kernel's clock leaves no later time, seconds.
_STILL_S = 1.0
_OVER = ("done", "given up", "failed", "lost")


class Packer:
    """Packs what is new in a run directory.

    Args:
        spool: Of that directory.
        facts: Who the run is.
        most_bytes: While more waits than this, patterns stay where they are.
        longest_s: Patterns that would be begun later than so many seconds after the others stay where they are.
        before: What was written from then on is another run's, seconds since 1970.

    Attributes:
        left_out: What can never be reported; the files stay, and `fleet/refused` says why.
    """

    def __init__(
        self,
        spool: Spool,
        facts: RunFacts,
        most_bytes: int,
        longest_s: float = math.inf,
        before: float = math.inf,
    ) -> None:
        self._spool = spool
        self._facts = facts
        self._most_bytes = most_bytes
        self._longest_s = longest_s
        self._before = before
        self._since = spool.state(facts.run).since
        self._run = spool.run
        self.left_out: set[tuple[str, str]] = set()
        self._packed: dict[int, tuple[int, ...]] = {}

    def pack(self, status: JobStatus | None, *, everything: bool = False) -> None:
        """Pack what is there.

        Args:
            status: The job now, for places of workers.
            everything: Patterns that may still be joined by others, too: nobody will look again.

        Raises:
            OSError: Something could not be read, or the disk is full; all that could be packed is.
        """
        failed: list[OSError] = []
        until = time.monotonic() + self._longest_s
        places = {each.worker.global_rank: each.worker for each in status.workers} if status is not None else {}
        known = {rank: Place(host=w.host, device=w.device_uuid or _device(w.device)) for rank, w in places.items()}
        phases = {line.window_id: line.phase for line in status.windows} if status is not None else {}
        for window_id, directory in self._windows():
            with _kept(failed):
                self._verdict(directory / "verdict.json", window_id, known, _window(directory))
            with _kept(failed):
                self._standstill(directory / "blockage.json", window_id)
        with _kept(failed):
            self._verdict(self._run / "verdict.json", 0, known, None)
        for window_id, directory in self._windows():
            complete = everything or phases.get(window_id) in _OVER or (directory / "verdict.json").exists()
            with _kept(failed):
                self._patterns(directory, window_id, complete, until)
        if failed:
            raise failed[0]

    def _windows(self) -> list[tuple[int, Path]]:
        with contextlib.suppress(FileNotFoundError):
            found = [path for path in (self._run / "windows").iterdir() if path.name.isdecimal()]
            return sorted((int(path.name), path) for path in found if len(path.name) < 10)
        return []

    # ------------------------------------------------------------------ verdicts and standstills

    def _verdict(self, path: Path, window_id: int, places: dict[int, Place], window: Window | None) -> None:
        signature = signature_of([path], self._before, self._since)
        key = f"verdict/{window_id}"
        if not signature or self._is_known(key, signature):
            return
        try:
            verdict = Verdict.from_json(read_private(path, MOST_JSON_BYTES))
        except (*UNDECODABLE, InputError) as error:
            self._give_up(key, signature, error)
            return
        named = {rank for finding in verdict.findings for rank in finding.workers}
        body = VerdictBody(
            window_id=window_id,
            judged_at=path.stat().st_mtime,
            verdict=verdict,
            purpose=window.purpose if window is not None else "",
            places={rank: places[rank] for rank in sorted(named) if rank in places},
        )
        self._keep("verdict", key, body, signature)

    def _standstill(self, path: Path, window_id: int) -> None:
        signature = signature_of([path], self._before, self._since)
        key = f"standstill/{window_id}"
        if not signature or self._is_known(key, signature):
            return
        record = read_private(path, MOST_JSON_BYTES)
        body = StandstillBody(window_id=window_id, seen_at=path.stat().st_mtime, record=record)
        self._keep("standstill", key, body, signature)

    # ------------------------------------------------------------------ patterns

    def _patterns(self, directory: Path, window_id: int, complete: bool, until: float) -> None:
        written, waits = _last_written(directory / "patterns"), False
        if not written or self._packed.get(window_id) == written:
            return
        with contextlib.ExitStack() as stack:
            blocks: dict[int, list[_Kept]] = {}
            for rank, kept in sorted(_kept_patterns(directory, stack).items()):
                if self._since <= kept.written_at < self._before:
                    blocks.setdefault(rank // BLOCK, []).append(kept)
            for number, some in sorted(blocks.items()):
                key = f"patterns/{window_id}/{number}"
                signature = f"{len(some)}-{max(one.stamp for one in some)[0]}-{sum(one.stamp[1] for one in some)}"
                if self._is_known(key, signature):
                    continue
                newest = max(one.written_at for one in some)
                if not complete and len(some) < BLOCK and now() - newest < _QUIET_S:
                    waits = True
                    continue
                if self._spool.waiting_bytes() > self._most_bytes or time.monotonic() > until:
                    return
                patterns = list(self._read(directory, some))
                window = _window(directory)
                if patterns:
                    body = block_of(number, patterns, window.purpose if window is not None else "")
                    self._keep("patterns", key, body, signature)
        if not waits and now() - written[0] / 1e9 > _STILL_S:
            self._packed[window_id] = written

    def _read(self, directory: Path, some: Iterable[_Kept]) -> Iterator[WorkerPattern]:
        for kept in some:
            try:
                yield decode_record(kept.read(), WorkerPattern)
            except (OSError, InputError) as error:
                log.warning("a pattern in %s is left out: %s", directory, error)

    # ------------------------------------------------------------------

    def _is_known(self, key: str, signature: str) -> bool:
        return self._spool.is_packed(key, signature) or (key, signature) in self.left_out

    def _give_up(self, key: str, signature: str, error: Exception) -> None:
        self.left_out.add((key, signature))
        self._spool.say_why(key, str(error))

    def _keep(self, kind: Kind, key: str, body: msgspec.Struct, signature: str) -> None:
        try:
            packed = pack_body(body)
        except InputError as error:
            self._give_up(key, signature, error)
            return
        self._spool.pack(Piece(kind=kind, key=key, facts=self._facts, at=now(), body=packed), signature)


@contextlib.contextmanager
def _kept(failed: list[OSError]) -> Iterator[None]:
    """What goes wrong with one file costs no other."""
    try:
        yield
    except OSError as error:
        failed.append(error)


def block_of(number: int, patterns: Sequence[WorkerPattern], purpose: str) -> PatternBlock:
    """Patterns of one window as columns; functions that several workers have are named once.

    Args:
        number: Of the block.
        patterns: At least one.
        purpose: Why the window was opened.
    """
    tables = [RowTable.of(pattern.functions) for pattern in patterns]
    keys = list(dict.fromkeys(key for table in tables for key in table.keys))
    resources = list(dict.fromkeys(name for table in tables for name in table.resources))
    key_at = {key: at for at, key in enumerate(keys)}
    resource_at = {name: at for at, name in enumerate(resources)}
    sizes = [len(table) for table in tables]
    resource = [np.array([resource_at[name] for name in t.resources], np.int32)[t.resource] for t in tables if len(t)]
    numbers = [np.asarray(table.numbers) for table in tables] or [np.empty((len(NUMBERS), 0))]
    workers = [pattern.worker for pattern in patterns]
    return PatternBlock(
        window_id=patterns[0].window_id,
        block=number,
        purpose=purpose,
        iterations=max(1, *(p.last_iteration - p.first_iteration for p in patterns)),
        ranks=np.array([w.global_rank for w in workers], "<i4").tobytes(),
        local_ranks=np.array([w.local_rank for w in workers], "<i4").tobytes(),
        places=tuple(Place(host=w.host, device=w.device_uuid or _device(w.device)) for w in workers),
        durations_s=np.array([pattern.duration_s for pattern in patterns], "<f8").tobytes(),
        keys=tuple(keys),
        key=np.array([key_at[key] for table in tables for key in table.keys], "<i4").tobytes(),
        worker=np.repeat(np.arange(len(tables)), sizes).astype("<i4").tobytes(),
        numbers=np.concatenate(numbers, axis=1).astype("<f4").tobytes(),
        resources=tuple(resources),
        resource=(np.concatenate(resource) if resource else np.empty(0)).astype("<i4").tobytes(),
    )


def _device(name: str) -> str:
    """A device that has a name of its own: "cuda:3", not "cpu"."""
    return name if ":" in name else ""


def _window(directory: Path) -> Window | None:
    try:
        return msgspec.json.decode(read_private(directory / "window.json", MOST_JSON_BYTES), type=Window)
    except (OSError, *UNDECODABLE):
        return None


class _Kept(NamedTuple):
    """A pattern on disk.

    Attributes:
        stamp: Others if it was written once more; the second is its bytes.
        written_at: When it was, or something behind it in the same file, seconds since 1970.
        read: What came of the worker.
    """

    stamp: tuple[int, int]
    written_at: float
    read: Callable[[], bytes]


def _kept_patterns(directory: Path, stack: contextlib.ExitStack) -> dict[int, _Kept]:
    """Patterns of a window by global rank; files that are read later are closed with `stack`."""
    found: dict[int, _Kept] = {}
    inside = directory / "patterns"
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        written_at = (inside / BUNDLE_FILE).stat().st_mtime
        bundle = _private_bundle(inside / BUNDLE_FILE)
        if bundle is not None:
            stack.enter_context(bundle)
            found = {rank: _Kept(bundle.stamp(rank), written_at, partial(bundle.read, rank)) for rank in bundle.ranks}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in inside.iterdir():
            if path.suffix == ".pattern" and path.stem.isdecimal():
                with contextlib.suppress(FileNotFoundError):
                    facts = path.stat()
                    stamp = facts.st_mtime_ns, facts.st_size
                    found[int(path.stem)] = _Kept(
                        stamp, facts.st_mtime, partial(read_private, path, MOST_PATTERN_BYTES)
                    )
    return found


def _last_written(inside: Path) -> tuple[int, ...]:
    """Changes when a pattern is written; the first is when that was, nanoseconds. Empty without any."""
    found = []
    for path in (inside, inside / BUNDLE_FILE):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found.append(path.stat())
    return tuple(sorted((one.st_mtime_ns for one in found), reverse=True)) + tuple(one.st_size for one in found)


def _private_bundle(path: Path) -> Bundle | None:
    os.close(private_file(path, os.O_RDONLY))  # what another user may have put there is not read
    try:
        return Bundle(path)
    except InputError as error:
        log.warning("%s is left out: %s", path, error)
        return None


def signature_of(paths: Sequence[Path], before: float = math.inf, since: float = 0.0) -> str:
    """Changes when one of the files does, or when there are more; "" if none is there that was written in this time."""
    facts = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            if since <= found.st_mtime < before:
                facts.append((found.st_mtime_ns, found.st_size))
    return f"{len(facts)}-{max(facts)[0]}-{sum(size for _, size in facts)}" if facts else ""
