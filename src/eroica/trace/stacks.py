"""Sampled Python stacks (py-spy's chrometrace form) as a timeline per thread. Times are CLOCK_MONOTONIC nanoseconds.

The file holds differences: at each sample the frames that left end ("E") and the new ones begin ("B"), so a stack
holds from its sample to the next sample that differs. Two oddities of the format are undone here. The differences are
kept per pthread id, which a forked data-loader child shares with its parent: their samples alternate in one row of
events, and an "E" carries the process of the sample that ended it. The owner is therefore read from the outermost
frames, `process PID:"command"` and `thread (TID): name`. And a thread that ended keeps its last stack to the end.

File names are shortened so that the same code has the same name on every host: installed packages from their package on
("torch/utils/data/dataloader.py"), the standard library from its root ("threading.py"), a torch built in place from
"torch/" on, and everything else to its last two parts ("project/train.py"). Numbers of instances go: notebook cells,
compiled graphs, addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError

_MAX_BYTES = 2_000_000_000
_MAX_DEPTH = 1000
_PROCESS = re.compile(r"process (\d{1,10})(?::|$)")
_THREAD = re.compile(r"thread \((\d{1,10})\)(?:: .*)?$", re.DOTALL)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_FORGET_PERIODS = 20
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_TAIL_BYTES = 100_000
Decoded = TypeVar("Decoded")


class SampledThread(NamedTuple):
    """A thread that was sampled: process id, kernel thread id."""

    process_id: int
    thread_id: int


@dataclass(frozen=True, eq=False)
class StackTimeline:
    """Which Python stack each thread had when. H stretches of time, T threads.

    Attributes:
        threads: The threads, T of them; `thread` indexes them.
        stacks: Distinct stacks, outermost frame first, as "function (file.py:first_line)"; `stack` indexes them. The
            empty stack (a thread in no Python code) has no stretches.
        thread: int32 [H].
        stack: int32 [H].
        start_ns: Moment of the first sample with this stack; increasing within a thread. int64 [H].
        end_ns: Moment of the next sample with another one. int64 [H].
        rate_hz: Samples per second asked for.
    """

    threads: tuple[SampledThread, ...]
    stacks: tuple[tuple[str, ...], ...]
    thread: NDArray[np.int32]
    stack: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    rate_hz: float

    def of_thread(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Stack, start and end of one thread's stretches in order of time."""
        rows = np.flatnonzero(self.thread == number)
        return self.stack[rows], self.start_ns[rows], self.end_ns[rows]


class _Meta(msgspec.Struct):
    start_monotonic_ns: int
    rate_hz: float


class _Place(msgspec.Struct, gc=False):
    filename: str = ""
    line: int | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str
    name: str
    tid: int
    ts: float
    pid: int = 0
    args: _Place = msgspec.field(default_factory=_Place)


class _Stretch(NamedTuple):
    """One stack of one thread, microseconds as the file has them."""

    owner: int
    stack: int
    start_us: float
    end_us: float


_EVENTS = msgspec.json.Decoder(list[_Event])
_META = msgspec.json.Decoder(_Meta)


def read_stacks(path: Path, meta_path: Path) -> StackTimeline:
    """Read the stacks of a worker and of its children.

    Args:
        path: The sampler's file; one that is cut short is read as far as it goes.
        meta_path: {"start_monotonic_ns": int, "rate_hz": int}.

    Raises:
        InputError: One of the files cannot be read, or is something else.
    """
    meta = _decode_file(meta_path, _META.decode)
    if not (0 < meta.rate_hz <= 100_000 and 0 <= meta.start_monotonic_ns < 2**62):
        raise InputError(f"{meta_path} gives an impossible rate or start")
    return _Reader(meta).timeline(_decode_file(path, _decode_events))


def _decode_file(path: Path, decode: Callable[[bytes], Decoded]) -> Decoded:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has more than {_MAX_BYTES} bytes; sample at a lower rate")
        return decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} holds no sampled stacks: {error}; capture the window again") from error


def _decode_events(data: bytes) -> list[_Event]:
    """All events; of a file cut short those before the cut."""
    try:
        return _EVENTS.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        ends = [match.start() + 1 for match in _BETWEEN.finditer(data, max(len(data) - _TAIL_BYTES, 0))]
        return _EVENTS.decode(data[: ends[-1]] + b"]" if ends else data[:1] + b"]")


class _Row:
    """State of one pthread id: the open frames, and since when their owner has them."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, str, int | None]] = []
        self.since: dict[int, tuple[int, float]] = {}
        self.latest = 0.0


class _Reader:
    """Turns differences into stretches."""

    def __init__(self, meta: _Meta) -> None:
        self._meta = meta
        self._rows: dict[int, _Row] = {}
        self._threads: dict[SampledThread, int] = {}
        self._stacks: dict[tuple[str, ...], int] = {}
        self._known: dict[tuple[tuple[str, str, int | None], ...], tuple[int, int] | None] = {}
        self._stretches: list[_Stretch] = []

    def timeline(self, events: Sequence[_Event]) -> StackTimeline:
        """All events, read to the end."""
        last = 0.0
        begin = 0
        for index in range(1, len(events) + 1):
            first = events[begin]
            if index < len(events):
                event = events[index]
                if event.ts == first.ts and event.tid == first.tid and event.pid == first.pid:
                    continue
            self._sample(events[begin:index], final=index == len(events))
            last = max(last, first.ts)
            begin = index
        self._close(last)
        return self._finish()

    def _sample(self, events: Sequence[_Event], final: bool) -> None:
        """One sample of one thread: frames that end, frames that begin."""
        row = self._rows.setdefault(events[0].tid, _Row())
        frames = row.frames
        began = False
        for event in events:
            if event.ph == "B":
                began = True
                frames.append((event.name, event.args.filename, event.args.line))
            elif event.ph == "E" and frames:
                _end_frame(frames, event.name)
        if final and not began:
            return
        self._observe(row, events[0].ts)

    def _observe(self, row: _Row, time: float) -> None:
        """From now on the row's owner has the frames that are open."""
        if not row.frames:
            return
        key = tuple(row.frames)
        if key not in self._known:
            self._known[key] = self._identify(key)
        found = self._known[key]
        if found is None:  # the sampler does not stop the process
            return
        owner, stack = found
        self._end(row, owner, time)
        row.since[owner] = (stack, time)
        row.latest = time

    def _end(self, row: _Row, owner: int, time: float) -> None:
        before = row.since.pop(owner, None)
        if before is not None and time > before[1] and before[0] >= 0:
            self._stretches.append(_Stretch(owner, before[0], before[1], time))

    def _close(self, last: float) -> None:
        """End what is open: with the file, or soon after its last sample if others of the row went on without it."""
        period = 1e6 / self._meta.rate_hz
        for row in self._rows.values():
            for owner in list(row.since):
                since = row.since[owner][1]
                gone = len(row.since) > 1 and row.latest - since > _FORGET_PERIODS * period
                self._end(row, owner, since + period if gone else last)

    def _identify(self, frames: tuple[tuple[str, str, int | None], ...]) -> tuple[int, int] | None:
        """Numbers of thread and stack (-1 for an empty one), None if the frames make no sense."""
        depth, process = 0, None
        while depth < len(frames) and (match := _PROCESS.match(frames[depth][0])) and not frames[depth][1]:
            process = int(match[1])
            depth += 1
        thread = _THREAD.match(frames[depth][0]) if depth < len(frames) and not frames[depth][1] else None
        if process is None or thread is None:
            return None
        rest = frames[depth + 1 :]
        if len(rest) > _MAX_DEPTH or not all(_is_readable(name) for name, _, _ in rest):
            return None
        stack = tuple(frame_text(name, file, line) for name, file, line in rest)
        number = self._stacks.setdefault(stack, len(self._stacks)) if stack else -1
        return self._threads.setdefault(SampledThread(process, int(thread[1])), len(self._threads)), number

    def _finish(self) -> StackTimeline:
        table = np.array(self._stretches, dtype=np.float64).reshape(-1, 4)
        start, end = (self._meta.start_monotonic_ns + np.rint(table[:, i] * 1000).astype(np.int64) for i in (2, 3))
        thread = table[:, 0].astype(np.int32)
        order = np.lexsort((start, thread))
        return StackTimeline(
            threads=tuple(self._threads),
            stacks=tuple(self._stacks),
            thread=thread[order],
            stack=table[order, 1].astype(np.int32),
            start_ns=start[order],
            end_ns=end[order],
            rate_hz=float(self._meta.rate_hz),
        )


def _end_frame(frames: list[tuple[str, str, int | None]], name: str) -> None:
    """Close the innermost open frame of this name and what lies above it; a stray end is ignored."""
    for depth in range(len(frames) - 1, -1, -1):
        if frames[depth][0] == name:
            del frames[depth:]
            return


def _is_readable(name: str) -> bool:
    return bool(name) and len(name) <= 500 and "\ufffd" not in name and name.isprintable()


@lru_cache(maxsize=65536)
def frame_text(function: str, file: str, line: int | None) -> str:
    """A frame as it stands in keys: "function (file.py:first_line)".

    Args:
        function: Qualified or plain name.
        file: Path as the interpreter has it.
        line: First line of the function, None if unknown.
    """
    name = _ADDRESS.sub("0x", function)
    short = short_file(file)
    if not short:
        return name
    return f"{name} ({short}:{line})" if line else f"{name} ({short})"


_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?:[^/]+\.egg/)?(.+)$")
_STANDARD = re.compile(r".*/lib(?:64)?/python\d+\.\d+\w*/(.+)$")
_ARCHIVE = re.compile(r".*/python\d+\.zip/(.+)$")
_TORCH = re.compile(r".*/(torch/.+)$")
_GUEST = re.compile(r".*/(eroica/worker/.+)$")  # from a checkout, too: `is_own_frame` must know it
_COMPILED = re.compile(r".*/torchinductor[^/]*/.*\.py$")
_CELL = re.compile(r".*/ipykernel_\d+/\d+\.py$")


def short_file(file: str) -> str:
    """The path without what differs between hosts and runs (see the module's text)."""
    text = file.replace("\\", "/")
    if text.startswith("<"):
        return text.split(">")[0] + ">"
    if _CELL.match(text):
        return "ipykernel/cell.py"
    if _COMPILED.match(text):
        return "torchinductor/compiled.py"
    for pattern in (_INSTALLED, _STANDARD, _ARCHIVE, _TORCH, _GUEST):
        match = pattern.match(text)
        if match:
            return match[1]
    return "/".join([part for part in text.split("/") if part][-2:])


def split_frame(frame: str) -> tuple[str, str]:
    """Function and short file of what `frame_text` made, the file without its line."""
    function, _, place = frame.rpartition(" (")
    if not function:
        return frame, ""
    return function, place[:-1].rsplit(":", 1)[0]
