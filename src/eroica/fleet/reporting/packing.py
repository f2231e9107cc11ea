"""From what lies in a run directory to pieces and beats.

Pieces are verdicts, patterns by blocks of workers, and looks at standstills. Beats say how a run is: one now and then
while it goes on, and a last one when it is over.
"""

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

from eroica.archive.bundle import Bundle
from eroica.archive.forget import BUNDLE_FILE
from eroica.archive.load import MOST_JSON_BYTES, MOST_PATTERN_BYTES, decode_history, window_directories
from eroica.errors import InputError
from eroica.fleet.records import (
    Beat,
    Kind,
    PatternBlock,
    Piece,
    Place,
    Points,
    RunFacts,
    StandstillBody,
    VerdictBody,
    pack_body,
)
from eroica.fleet.reporting.spool import KeptBeat, SendState, Spool, digest_of, read_record
from eroica.model.history import IterationHistory
from eroica.model.pattern import WorkerPattern
from eroica.model.rows import NUMBERS, RowTable
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.model.worker import Worker
from eroica.wire.codec import UNDECODABLE, decode_record
from eroica.wire.messages import JobStatus
from eroica.wire.places import private_directory, private_file, read_private, write_whole

log = logging.getLogger("eroica.fleet")

#: Workers in one block of patterns: enough that they share their call stacks, few enough for a small request.
BLOCK = 64
#: Patterns of a window without a verdict are waited for as long as new ones come, seconds.
_QUIET_S = 20.0
#: Whoever writes within the same tick of the kernel's clock leaves no later time, seconds.
_STILL_S = 1.0
#: While more than this waits to be handed over, patterns stay in the run directory.
_MOST_WAITING_BYTES = 1_000_000_000
_OVER = ("done", "given up", "failed", "lost")
#: Stretches of iteration times, of about a second each, in which a job may still be warming up.
_FIRST_STRETCHES = 5
#: Stretches that are told in one beat.
_MOST_POINTS = 5000


class Seen(NamedTuple):
    """What a run directory says of its run now.

    Attributes:
        status: As the collector wrote it last; None where it cannot be read.
        history: Iteration times; None where they cannot be read.
        over: The run's final verdict is there.
        next_began: When another run began in this directory, seconds since 1970: what lies there is its. 0 where none
            did.
        signature: Changes when a file of this run does; "" without any.
        written_at: When the newest of them was written, seconds since 1970; 0 without any.
    """

    status: JobStatus | None = None
    history: IterationHistory | None = None
    over: bool = False
    next_began: float = 0.0
    signature: str = ""
    written_at: float = 0.0


def watch(spool: Spool, facts: RunFacts) -> Seen:
    """Look for a run, and remember since when its iterations are counted.

    Raises:
        OSError: The directory cannot be written.
    """
    state = spool.state(facts.run)
    seen = look(spool.run, state)
    if seen.history is not None and not state.began:
        spool.save_state(msgspec.structs.replace(state, began=seen.history.began))
    return seen


def look(run: Path, state: SendState) -> Seen:
    """Look into a run directory for the run that a state is of."""
    verdict, status, history = (run / name for name in ("verdict.json", "status.json", "history.json"))
    times = read_history(run)
    if times is not None and state.began not in (0.0, times.began):
        return Seen(next_began=times.began)
    over = signature_of([verdict], state.since) != ""
    ours = [*([verdict] if over else []), status, history]
    written = []
    for path in ours:
        with contextlib.suppress(FileNotFoundError):
            written.append(path.stat().st_mtime)
    return Seen(
        status=read_record(status, JobStatus),
        history=times,
        over=over,
        signature=signature_of(ours),
        written_at=max(written, default=0.0),
    )


def beat_of(facts: RunFacts, seen: Seen, state: SendState) -> Beat:
    """A beat that tells what is new since the last one that was taken.

    Args:
        facts: Who the run is.
        seen: How it is.
        state: What the service has of it.
    """
    status = seen.status or JobStatus(job=facts.job, phase="starting", message="")
    points, means = Points(), list[float]()
    if (times := seen.history) is not None:
        new = next((at for at, end_s in enumerate(times.at_s) if end_s > state.until_s), len(times.at_s))
        points = Points(**{name: getattr(times, name)[new : new + _MOST_POINTS] for name in Points.__struct_fields__})
        means = sorted(times.mean_ms[_FIRST_STRETCHES:])
    return Beat(
        facts=facts,
        at=time.time(),
        phase="over" if seen.over else status.phase,
        message=status.message,
        iteration=status.iteration,
        mean_ms=status.mean_ms,
        best_ms=means[len(means) // 5] if means else None,  # what a fifth of the stretches stayed below
        workers=len(status.workers),
        hosts=status.hosts if status.hosts and digest_of(status.hosts) != state.hosts else None,
        points=points,
        orders=state.heard,
    )


def keep_last(spool: Spool, facts: RunFacts, seen: Seen) -> None:
    """Keep what is left to be told of a run that nobody reports any more, as one beat, until the service has it.

    Raises:
        OSError: The directory cannot be read or written.
    """
    state = spool.state(facts.run)
    if seen.signature and (seen.signature != state.told or not spool.is_empty()):
        kept = KeptBeat(beat=aged(beat_of(facts, seen, state), seen), told=seen.signature)
        write_whole(private_directory(spool.root / "beats") / facts.run, msgspec.msgpack.encode(kept))


def aged(beat: Beat, seen: Seen) -> Beat:
    """A beat of a run that nobody watches any more: it is as old as what it was made from."""
    return msgspec.structs.replace(beat, age_s=max(0.0, time.time() - seen.written_at) if seen.written_at else 0.0)


def read_history(run: Path) -> IterationHistory | None:
    """Iteration times as the collector wrote them last; None where they cannot be read."""
    with contextlib.suppress(OSError, InputError, *UNDECODABLE):
        return decode_history(read_private(run / "history.json", MOST_JSON_BYTES))
    return None


# ---------------------------------------------------------------------- pieces


class Packer:
    """Packs what is new in a run directory.

    Args:
        spool: Of that directory.
        facts: Who the run is.
        most_bytes: While more waits than this, patterns stay where they are.
        longest_s: Patterns that would be begun later than so many seconds after the others stay where they are.

    Attributes:
        left_out: What can never be reported; the files stay, and `fleet/refused` says why.
    """

    def __init__(
        self,
        spool: Spool,
        facts: RunFacts,
        most_bytes: int = _MOST_WAITING_BYTES,
        longest_s: float = math.inf,
    ) -> None:
        self._spool = spool
        self._facts = facts
        self._most_bytes = most_bytes
        self._longest_s = longest_s
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
        workers = [each.worker for each in status.workers] if status is not None else []
        known = {worker.global_rank: _place(worker) for worker in workers}
        phases = {line.window_id: line.phase for line in status.windows} if status is not None else {}
        unread: list[str] = []
        windows = {int(path.name): path for path in window_directories(self._run, unread)}
        failed += [OSError(why) for why in unread]
        for window_id, directory in windows.items():
            window = read_record(directory / "window.json", Window)
            with _kept(failed):
                self._verdict(directory / "verdict.json", window_id, known, window)
            with _kept(failed):
                self._standstill(directory / "blockage.json", window_id)
        with _kept(failed):
            self._verdict(self._run / "verdict.json", 0, known, None)
        for window_id, directory in windows.items():
            complete = everything or phases.get(window_id) in _OVER or (directory / "verdict.json").exists()
            with _kept(failed):
                self._patterns(directory, window_id, complete, until)
        if failed:
            raise failed[0]

    # ------------------------------------------------------------------ verdicts and standstills

    def _news(self, path: Path, key: str) -> str:
        """Signature of a file that is not packed under this key yet; "" for others."""
        signature = signature_of([path], self._since)
        return "" if self._is_known(key, signature) else signature

    def _verdict(self, path: Path, window_id: int, places: dict[int, Place], window: Window | None) -> None:
        key = f"verdict/{window_id}"
        if not (signature := self._news(path, key)):
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
        key = f"standstill/{window_id}"
        if signature := self._news(path, key):
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
                if kept.written_at >= self._since:
                    blocks.setdefault(rank // BLOCK, []).append(kept)
            for number, some in sorted(blocks.items()):
                key = f"patterns/{window_id}/{number}"
                signature = f"{len(some)}-{max(one.stamp for one in some)[0]}-{sum(one.stamp[1] for one in some)}"
                if self._is_known(key, signature):
                    continue
                newest = max(one.written_at for one in some)
                if not complete and len(some) < BLOCK and time.time() - newest < _QUIET_S:
                    waits = True
                    continue
                if (
                    sum(path.stat().st_size for path in self._spool.waiting_files()) > self._most_bytes
                    or time.monotonic() > until
                ):
                    return
                patterns = list(self._read(directory, some))
                window = read_record(directory / "window.json", Window)
                if patterns:
                    body = block_of(number, patterns, window.purpose if window is not None else "")
                    self._keep("patterns", key, body, signature)
        if not waits and time.time() - written[0] / 1e9 > _STILL_S:
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
        self._spool.pack(Piece(kind=kind, key=key, facts=self._facts, at=time.time(), body=packed), signature)


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
        places=tuple(map(_place, workers)),
        durations_s=np.array([pattern.duration_s for pattern in patterns], "<f8").tobytes(),
        keys=tuple(keys),
        key=np.array([key_at[key] for table in tables for key in table.keys], "<i4").tobytes(),
        worker=np.repeat(np.arange(len(tables)), sizes).astype("<i4").tobytes(),
        numbers=np.concatenate(numbers, axis=1).astype("<f4").tobytes(),
        resources=tuple(resources),
        resource=(np.concatenate(resource) if resource else np.empty(0)).astype("<i4").tobytes(),
    )


def _place(worker: Worker) -> Place:
    """Where a worker runs; "cpu" is no device with a name of its own."""
    return Place(host=worker.host, device=worker.device_uuid or (worker.device if ":" in worker.device else ""))


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
        os.close(private_file(inside / BUNDLE_FILE, os.O_RDONLY))  # what another user may have put there is not read
        try:
            bundle = stack.enter_context(Bundle(inside / BUNDLE_FILE))
        except InputError as error:
            log.warning("%s is left out: %s", inside / BUNDLE_FILE, error)
        else:
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


def signature_of(paths: Sequence[Path], since: float = 0.0) -> str:
    """Changes when one of the files does, or when there are more; "" if none is there that was written since then."""
    facts = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            if found.st_mtime >= since:
                facts.append((found.st_mtime_ns, found.st_size))
    return f"{len(facts)}-{max(facts)[0]}-{sum(size for _, size in facts)}" if facts else ""
