"""The shared-memory record between one worker and its host's agent. Standard library only: the worker imports this.

One file per worker, `<runtime dir>/<pid>.beat`; creating it is the registration. It holds the first page of what is
below, and the page says where the whole is: in memory of the worker's that nobody can cut short (`eroica.wire.sealed`).
Where the kernel has nothing of the kind, the file holds everything and is mapped itself::

    offset     bytes  written by  what
    0          4096   worker      identity: magic, length, JSON (once, then the file is renamed into place)
    4096       256    worker      beat: how far it is (every iteration; last_event_ns at every hooked event)
    4352       256    worker      last_event_ns, alone
    4608       512    worker      result: what became of the last order
    5120       1024   agent       order: the next window
    8192       8192   worker      ring: duration of the last 1024 iterations, nanoseconds, uint64

Every record starts and ends with the same counter: a reader that finds them different has caught the writer in the
middle and looks again. Neither side ever waits for the other. A plain iteration
(`eroica.worker.plain_iterations`) writes only its duration, its end and its number, in this order, and leaves the
counters alone: each is one aligned word.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

from eroica.wire import sealed

MAGIC = b"EROICA01"
PAGE_BYTES = 4096
_HEAD = struct.Struct("=8sI")


def page_of(identity: dict[str, Any]) -> bytes:
    """The page: magic, length, JSON, zeros.

    Raises:
        ValueError: The identity does not fit.
    """
    text = json.dumps(identity).encode()
    if len(text) > PAGE_BYTES - _HEAD.size:
        raise ValueError(f"identity of {len(text)} bytes does not fit into one page; shorten it")
    return (_HEAD.pack(MAGIC, len(text)) + text).ljust(PAGE_BYTES, b"\0")


def identity_on(page: bytes, path: Path) -> dict[str, Any]:
    """What stands on a page.

    Args:
        page: The first bytes of the file.
        path: The file, for the message.

    Raises:
        ValueError: Nothing that could be an identity.
    """
    magic, length = _HEAD.unpack_from(page, 0) if len(page) == PAGE_BYTES else (b"", 0)
    if magic != MAGIC or length > PAGE_BYTES - _HEAD.size:
        raise ValueError(f"{path} is not a beat file of this version")
    try:
        identity = json.loads(page[_HEAD.size : _HEAD.size + length])
    except (ValueError, RecursionError):
        raise ValueError(f"{path} has an unreadable identity page") from None
    if not isinstance(identity, dict):
        raise ValueError(f"{path} has an identity that is no object")
    return identity


RING_SLOTS = 1024
_BEAT_AT, _EVENT_AT, _RESULT_AT, _ORDER_AT, _RING_AT = PAGE_BYTES, 4352, 4608, 5120, 8192
FILE_BYTES = _RING_AT + 8 * RING_SLOTS

# native byte order: both sides are on one host, and the worker writes words without packing them first
_COUNTER = struct.Struct("=Q")
_BEAT = struct.Struct("=QQQIIQ")
_RESULT = struct.Struct("=QQIIQQQQQ192sQ")
_ORDER = struct.Struct("=QQIIQQQII512sQ")
_BEAT_WORD, EVENT_WORD, ORDER_WORD, RING_WORD = (at // 8 for at in (_BEAT_AT, _EVENT_AT, _ORDER_AT, _RING_AT))
BEAT_ITERATION_WORD, BEAT_END_WORD = _BEAT_WORD + 1, _BEAT_WORD + 2
_UPPER_HALF, _LOWER_HALF = (32, 0) if sys.byteorder == "little" else (0, 32)
#: Bits of the state's half of its word: state, source and known sources, eight each.
_STATE, _SOURCE, _KNOWN = 0xFF, 8, 16
_TRIES = 8
_MOST_ORDERS = 1 << 62
_MEMORY = "shared_memory"

# state of a worker
LEARNING, STEADY, CAPTURING, SAVING, FAILED, FINISHED = range(6)
STATE_NAMES = ("learning", "steady", "capturing", "saving", "failed", "finished")

# what marks a worker's iterations, the better the higher; see docs/decisions/iterations.md
NO_SOURCE, BATCHES, EXCHANGES, BACKWARD, OPTIMIZER, ANNOUNCED = range(6)

# kinds of order
PROBE, WINDOW, CANCEL, CLOSE = 1, 2, 3, 4
COUNT = 5  # iterations by the source that stands in the flags
# flags of an order
RISEN = 2  # of CLOSE: iterations have become longer inside a baseline window
NO_OPERATORS = 4  # of PROBE and WINDOW: operators make too many events

# what became of an order
NOTHING, ACCEPTED, OPEN, CLOSED, DONE, MISSED, SKIPPED, ORDER_FAILED = range(8)
RESULT_NAMES = ("nothing", "accepted", "open", "closed", "done", "missed", "skipped", "failed")


class Beat(NamedTuple):
    """How far a worker is. Times are CLOCK_MONOTONIC nanoseconds."""

    iteration: int
    """Completed optimizer iterations since the process became a worker."""
    iteration_end_ns: int
    """When the last iteration ended."""
    last_event_ns: int
    """When any hook last fired."""
    state: int
    """One of LEARNING ... FINISHED."""
    relearned: int
    """How often the iteration pattern had to be learned again."""
    source: int = NO_SOURCE
    """What marks iterations, one of NO_SOURCE ... ANNOUNCED."""
    known: int = 0
    """Sources that could: bit number n stands for source n."""


class Order(NamedTuple):
    """What a worker shall capture."""

    window_id: int
    kind: int
    """PROBE, WINDOW, CANCEL, COUNT, or CLOSE: end the open window at the next boundary."""
    flags: int
    first_iteration: int
    """Capture opens when this many iterations are completed."""
    last_iteration: int
    """Exclusive."""
    max_events: int
    """Close early above this many events; 0 = no limit."""
    sampling_hz: int
    """Sample Python stacks from inside at this rate; 0 = the agent samples from outside."""
    directory: str
    """Where trace and capture.json go; exists already."""


class Result(NamedTuple):
    """What became of the last order."""

    window_id: int
    status: int
    """One of NOTHING ... ORDER_FAILED."""
    kind: int
    """Kind of the order it answers."""
    first_iteration: int
    last_iteration: int
    events: int
    stall_ns: int
    duration_ns: int
    """Captured time, first to last boundary."""
    note: str
    """Why it was missed, skipped or failed."""


NO_RESULT = Result(0, NOTHING, 0, 0, 0, 0, 0, 0, "")


class _Mapping:
    """A mapped beat file."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path = path
        self._memory = memory

    def close(self) -> None:
        """Unmap; the file stays."""
        with contextlib.suppress(BufferError):
            self._memory.close()

    def _read(self, layout: struct.Struct, offset: int) -> tuple[Any, ...] | None:
        """Fields without the counters, None if never written or always caught in the middle."""
        for _ in range(_TRIES):
            (ended,) = _COUNTER.unpack_from(self._memory, offset + layout.size - _COUNTER.size)
            fields = layout.unpack_from(self._memory, offset)
            (begun,) = _COUNTER.unpack_from(self._memory, offset)
            if ended == begun == fields[0] == fields[-1]:  # nothing was begun since what we read was ended
                return fields[1:-1] if ended else None
        return None


class BeatWriter(_Mapping):
    """The worker's side. Every method is a few memory writes: no system call, no allocation worth naming, no lock.

    Attributes:
        words: The file as 64-bit words, for the hot path.
        order_seen: Number of the last order that was taken.
        sources: What marks iterations and what could, as the state's word holds it.
    """

    def __init__(self, path: Path, memory: mmap.mmap, place: dict[str, int] | None = None) -> None:
        super().__init__(path, memory)
        self._place = place
        self.words = memoryview(memory).cast("Q")
        self.order_seen = self.sources = 0
        self._beats = 0
        self._results = 0

    @classmethod
    def create(cls, directory: Path, identity: dict[str, Any], seal: bool = True) -> BeatWriter:
        """Register this process: write the identity page and rename the file into place.

        Args:
            directory: The runtime directory of this host and job (0700).
            identity: Facts of `eroica.model.worker.Worker` and whatever else the agent should know; JSON-able.
            seal: Share memory that nobody can cut short, if there is any, instead of the file itself.

        Raises:
            OSError: The directory cannot be written, or is full.
            ValueError: The identity does not fit into a page.
        """
        path, draft = directory / f"{os.getpid()}.beat", directory / f".{os.getpid()}.draft"
        memory, place = _sealed_memory() if seal else (None, None)
        try:
            page = page_of({**identity, _MEMORY: place} if place is not None else identity)
            handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                # a full disk shows here, not as SIGBUS in the training
                os.posix_fallocate(handle, 0, PAGE_BYTES if place is not None else FILE_BYTES)
                os.pwrite(handle, page, 0)
                if memory is None:
                    memory = mmap.mmap(handle, FILE_BYTES)
            finally:
                os.close(handle)
            draft.rename(path)
        except BaseException:
            if place is not None:
                sealed.let_go(place["file"], place["inode"])
            raise
        return cls(path, memory, place)

    def beat(self, iteration: int, end_ns: int, duration_ns: int, state: int, relearned: int) -> bool:
        """Write down one completed iteration.

        Returns:
            Whether the agent has left an order.
        """
        words = self.words
        words[RING_WORD + iteration % RING_SLOTS] = duration_ns
        self._beats = counter = self._beats + 1
        words[_BEAT_WORD] = counter
        words[BEAT_ITERATION_WORD] = iteration
        words[BEAT_END_WORD] = end_ns
        words[_BEAT_WORD + 3] = state << _LOWER_HALF | relearned << _UPPER_HALF | self.sources
        words[_BEAT_WORD + 4] = counter
        return words[ORDER_WORD] != self.order_seen

    def count_by(self, source: int, known: int) -> None:
        """Say from here on what marks iterations, and which sources could; see `Beat`."""
        before, self.sources = self.sources, (source << _SOURCE | known << _KNOWN) << _LOWER_HALF
        self.words[_BEAT_WORD + 3] = self.words[_BEAT_WORD + 3] & ~before | self.sources

    def introduce(self, identity: dict[str, Any]) -> None:
        """Write the identity page anew: more is known of this process now.

        Raises:
            OSError: The file is gone.
            ValueError: The identity does not fit into a page.
        """
        page = page_of({**identity, _MEMORY: self._place} if self._place is not None else identity)
        handle = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(handle, page, 0)
        finally:
            os.close(handle)

    def touch(self, now_ns: int) -> None:
        """Write down that a hook fired."""
        self.words[EVENT_WORD] = now_ns

    def close(self) -> None:
        """Unmap; the file stays."""
        self.words.release()
        if self._place is not None:
            sealed.let_go(self._place["file"], self._place["inode"])
        super().close()

    def new_order(self) -> Order | None:
        """The agent's order if there is one that was not returned before."""
        (counter,) = _COUNTER.unpack_from(self._memory, _ORDER_AT)
        if counter == self.order_seen:
            return None
        fields = self._read(_ORDER, _ORDER_AT)
        if fields is None:
            return None
        self.order_seen = counter
        window_id, kind, flags, first, last, max_events, sampling_hz, _, directory = fields
        return Order(window_id, kind, flags, first, last, max_events, sampling_hz, _text(directory))

    def answer(self, result: Result) -> None:
        """Tell the agent what became of an order."""
        self._results += 1
        note = result.note.encode("utf-8", "replace")[:192].decode("utf-8", "ignore").encode()  # cut between characters
        _RESULT.pack_into(
            self._memory, _RESULT_AT, self._results, result.window_id, result.status, result.kind,
            result.first_iteration, result.last_iteration, result.events, result.stall_ns, result.duration_ns,
            note, self._results,
        )  # fmt: skip

    def remove(self) -> None:
        """Sign off: the file goes, so the agent knows the worker ended in order."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()


class BeatReader(_Mapping):
    """The agent's side."""

    def __init__(self, path: Path, memory: mmap.mmap, identity: dict[str, Any]) -> None:
        super().__init__(path, memory)
        self.identity = identity
        self._orders = self._written_ns = 0

    @classmethod
    def open(cls, path: Path) -> BeatReader:
        """Map a worker's file.

        Raises:
            OSError: It is gone, is no regular file of ours, or a link.
            ValueError: It is not a beat file, or was cut short.
        """
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            facts = os.fstat(handle)
            if facts.st_uid != os.getuid():
                raise ValueError(f"{path} belongs to user {facts.st_uid}, not to us; not touched")
            identity = identity_on(os.pread(handle, PAGE_BYTES, 0), path)
            place = identity.pop(_MEMORY, None)
            if place is not None:
                memory = sealed.reach(place, FILE_BYTES)
            elif facts.st_size < FILE_BYTES:
                raise ValueError(f"{path} has {facts.st_size} bytes instead of {FILE_BYTES}; not a beat file")
            else:
                memory = mmap.mmap(handle, FILE_BYTES)
        finally:
            os.close(handle)
        return cls(path, memory, identity)

    def look_again(self) -> bool:
        """Read the identity page again if it may have been written since. Return whether it was.

        Raises:
            OSError: The file is gone.
            ValueError: It has no identity, as while it is being written.
        """
        written_ns = self.path.stat().st_mtime_ns
        if written_ns == self._written_ns:
            return False
        handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb", buffering=0) as file:
            if os.fstat(handle).st_uid != os.getuid():
                return False
            identity = identity_on(file.read(PAGE_BYTES), self.path)
        self._written_ns, before = written_ns, self.identity
        identity.pop(_MEMORY, None)
        self.identity = identity
        return identity != before

    def beat(self) -> Beat | None:
        """The last beat, None before the first."""
        fields = self._read(_BEAT, _BEAT_AT)
        if fields is None:
            return None
        iteration, end_ns, word, relearned = fields
        (last_event_ns,) = _COUNTER.unpack_from(self._memory, _EVENT_AT)
        state, source, known = word & _STATE, word >> _SOURCE & _STATE, word >> _KNOWN & _STATE
        return Beat(iteration, end_ns, max(last_event_ns, end_ns), state, relearned, source, known)

    def durations(self, after: int, until: int) -> list[int]:
        """Durations in nanoseconds of iterations `after + 1 ... until`, as far as the ring still holds them."""
        first = max(after + 1, until - RING_SLOTS + 2)
        return [_COUNTER.unpack_from(self._memory, _RING_AT + 8 * (i % RING_SLOTS))[0] for i in range(first, until + 1)]

    def give(self, order: Order) -> None:
        """Hand an order to the worker; it replaces one that was not seen yet.

        Raises:
            ValueError: The directory's path is longer than 512 bytes, or a number is impossible.
        """
        directory = order.directory.encode()
        if len(directory) > 512:
            raise ValueError(
                f"scratch path of {len(directory)} bytes is too long (512); choose another EROICA_SCRATCH_DIR"
            )
        (seen,) = _COUNTER.unpack_from(self._memory, _ORDER_AT)
        self._orders = max(self._orders, seen) % _MOST_ORDERS + 1
        record = (
            self._orders, order.window_id, order.kind, order.flags, order.first_iteration, order.last_iteration,
            order.max_events, order.sampling_hz, 0, directory, self._orders,
        )  # fmt: skip
        try:
            _ORDER.pack(*record)
        except struct.error as error:
            raise ValueError(f"{order} is none that a worker could follow: {error}") from error
        _ORDER.pack_into(self._memory, _ORDER_AT, *record)

    def result(self) -> Result:
        """What became of the last order."""
        fields = self._read(_RESULT, _RESULT_AT)
        if fields is None:
            return NO_RESULT
        window_id, status, kind, first, last, events, stall_ns, duration_ns, note = fields
        return Result(window_id, status, kind, first, last, events, stall_ns, duration_ns, _text(note))


def _sealed_memory() -> tuple[mmap.mmap | None, dict[str, int] | None]:
    """The memory and where others find it; nothing where the kernel has no such memory, or hides it."""
    if not sealed.can_be_shared():
        return None, None
    try:
        handle, memory = sealed.create("eroica-beat", FILE_BYTES)
    except OSError:
        return None, None
    return memory, sealed.whereabouts(handle)


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode("utf-8", "replace")
