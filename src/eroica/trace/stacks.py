"""Sampled Python stacks (py-spy's chrometrace form) as a timeline per thread. Times are CLOCK_MONOTONIC nanoseconds.

There is a file for each process. It holds differences: at each sample the frames that left end ("E") and the new ones
begin ("B"), so a stack holds from its sample to the next sample that differs. They are kept per pthread id, which a
later thread may have again: the outermost frame, `thread (TID): name`, tells whose they are.

File names are shortened so that the same code has the same name on every host: installed packages from their package on
("torch/utils/data/dataloader.py"), the standard library from its root ("threading.py"), a torch built in place from
"torch/" on, and everything else to its last two parts ("project/train.py"). Numbers of instances go: notebook cells,
compiled graphs, addresses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError

_MAX_BYTES = 2_000_000_000
_MAX_DEPTH = 1000
_MOST_US = 1e15
_THREAD = re.compile(r"thread \((\d{1,10})\)(?:: .*)?$", re.DOTALL)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_TAIL_BYTES = 100_000
Decoded = TypeVar("Decoded")
_Frame = tuple[str, str, "int | None"]


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


_EVENTS = msgspec.json.Decoder(list[_Event])
_META = msgspec.json.Decoder(_Meta)


def read_stacks(paths: Sequence[Path]) -> StackTimeline:
    """Read the stacks of a worker and of its children.

    Args:
        paths: The sampler's file of each process, the worker's first; one that is cut short is read as far as it goes.
            Its rate, and what its times count from, lie beside it: {"start_monotonic_ns": int, "rate_hz": int} in
            `.meta.json`.

    Raises:
        InputError: A file cannot be read, or is something else.
    """
    reader = _Reader()
    for path in paths:
        reader.read(path)
    return reader.timeline()


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
    """State of one pthread id: the open frames, and which stack of which thread they are since when."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []
        self.since: tuple[int, int, int] | None = None  # thread, stack (-1 for an empty one), nanoseconds


class _Reader:
    """Turns the differences in the files of several processes into stretches."""

    def __init__(self) -> None:
        self._rate_hz = 0.0
        self._threads: dict[SampledThread, int] = {}
        self._stacks: dict[tuple[str, ...], int] = {}
        self._stretches: list[tuple[int, int, int, int]] = []  # thread, stack, start and end

    def read(self, path: Path) -> None:
        """Read the file of one process."""
        meta_path = path.with_suffix(".meta.json")
        meta = _decode_file(meta_path, _META.decode)
        if not (0 < meta.rate_hz <= 100_000 and 0 <= meta.start_monotonic_ns < 2**62):
            raise InputError(f"{meta_path} gives an impossible rate or start")
        self._rate_hz = self._rate_hz or meta.rate_hz
        rows: defaultdict[int, _Row] = defaultdict(_Row)
        identify = lru_cache(maxsize=None)(self._identify)
        last_ns = 0
        for (tid, ts), sample in groupby(_decode_file(path, _decode_events), key=lambda event: (event.tid, event.ts)):
            row, process = rows[tid], 0
            now_ns = meta.start_monotonic_ns + round(1000 * min(max(ts, 0.0), _MOST_US))
            last_ns = max(last_ns, now_ns)
            for event in sample:
                process = event.pid
                if event.ph == "B":
                    row.frames.append((event.name, event.args.filename, event.args.line))
                elif event.ph == "E":
                    _end_frame(row.frames, event.name)
            found = identify(process, tuple(row.frames))
            if found is not None or not row.frames:  # else it was read while it changed: the sampler stops nobody
                self._end(row, now_ns)
                row.since = None if found is None else (*found, now_ns)
        for row in rows.values():
            self._end(row, last_ns)

    def _end(self, row: _Row, now_ns: int) -> None:
        if row.since is not None and now_ns > row.since[2] and row.since[1] >= 0:
            self._stretches.append((*row.since, now_ns))

    def _identify(self, process: int, frames: tuple[_Frame, ...]) -> tuple[int, int] | None:
        """Numbers of thread and stack (-1 for an empty one), None if the frames make no sense."""
        thread = _THREAD.match(frames[0][0]) if frames and not frames[0][1] else None
        rest = frames[1:]
        if thread is None or len(rest) > _MAX_DEPTH or not all(_is_readable(name) for name, _, _ in rest):
            return None
        stack = tuple(frame_text(name, file, line) for name, file, line in rest)
        number = self._stacks.setdefault(stack, len(self._stacks)) if stack else -1
        return self._threads.setdefault(SampledThread(process, int(thread[1])), len(self._threads)), number

    def timeline(self) -> StackTimeline:
        """All that was read."""
        thread, stack, start, end = np.array(self._stretches, dtype=np.int64).reshape(-1, 4).T
        order = np.lexsort((start, thread))
        return StackTimeline(
            threads=tuple(self._threads),
            stacks=tuple(self._stacks),
            thread=thread[order].astype(np.int32),
            stack=stack[order].astype(np.int32),
            start_ns=start[order],
            end_ns=end[order],
            rate_hz=self._rate_hz,
        )


def _end_frame(frames: list[_Frame], name: str) -> None:
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
