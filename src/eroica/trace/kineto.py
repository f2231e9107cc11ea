"""Kineto (Chrome) traces as `EventTable`: what torch writes on CPU and CUDA, and the category names of 2021.

Fields that are not known are skipped while decoding. A trace is refused only if nothing sensible can be read from it.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.trace.table import Category, CollectiveArguments, EventTable

_CATEGORIES = {
    "cpu_op": Category.OPERATOR,
    "operator": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMORY,
    "memcpy": Category.MEMORY,
    "gpu_memset": Category.MEMORY,
    "memset": Category.MEMORY,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
}
_MAX_BYTES = 4_000_000_000
_COLLECTIVE_KERNEL = re.compile(r"^(nccl|rccl|mscclKernel)", re.IGNORECASE)


class _Arguments(msgspec.Struct, gc=False):
    collective: Any = msgspec.field(default="", name="Collective name")
    group: Any = msgspec.field(default="", name="Process Group Name")
    sequence_upper: Any = msgspec.field(default=None, name="Seq")
    sequence_lower: Any = msgspec.field(default=None, name="seq")
    elements: Any = msgspec.field(default=0, name="In msg nelems")
    group_size: Any = msgspec.field(default=0, name="Group size")
    ranks: Any = msgspec.field(default="", name="Process Group Ranks")
    source: Any = msgspec.field(default=-1, name="Src Rank")
    destination: Any = msgspec.field(default=-1, name="Dst Rank")
    stream: Any = -1


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: Any = ""
    cat: Any = ""
    pid: Any = 0
    tid: Any = -1
    ts: float = 0.0
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = msgspec.field(default=0, name="baseTimeNanoseconds")


class _State(msgspec.Struct):
    finished: bool = True


class _Named(msgspec.Struct):
    name: str = ""


_TRACE = msgspec.json.Decoder(_Trace)
_ARGUMENTS = msgspec.json.Decoder(_Arguments)
_NAMED = msgspec.json.Decoder(_Named)
_STATE = msgspec.json.Decoder(_State)


def read_trace(path: Path) -> EventTable:
    """Read one worker's trace.

    Args:
        path: A .json or .json.gz as Kineto writes it.

    Returns:
        Its complete events ("ph": "X"). What was still open when the trace was stopped ends with the trace: Kineto says
        so with "finished": false and cuts it itself; an event without a usable duration is cut here.

    Raises:
        InputError: The file cannot be read, is cut short, or is no trace.
    """
    try:
        trace = _TRACE.decode(_read_bytes(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no complete Kineto trace: {error}; capture the window again") from error
    rows = [event for event in trace.events if event.ph == "X"]
    return _table(rows, trace)


def _read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has more than {_MAX_BYTES} bytes; capture fewer iterations")
        data = path.read_bytes()
        return _unzip(data, path) if data[:2] == b"\x1f\x8b" else data
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _unzip(data: bytes, path: Path) -> bytes:
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        text = unpacker.decompress(data, _MAX_BYTES)
        if unpacker.unconsumed_tail:
            raise InputError(f"{path} unpacks to more than {_MAX_BYTES} bytes")
        if not unpacker.eof:
            raise InputError(f"{path} is cut short; capture the window again")
        return text if not unpacker.unused_data else gzip.decompress(data)
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"{path} is a damaged gzip file: {error}") from error


def _table(rows: list[_Event], trace: _Trace) -> EventTable:
    strings, name = _intern(rows)
    start, end, open_events = _times(rows, trace)
    category = _categories(rows)
    order = np.lexsort((-end, start))
    position = np.empty(len(rows), dtype=np.int64)
    position[order] = np.arange(len(rows))
    return EventTable(
        strings=strings,
        name=name[order],
        category=category[order],
        thread=_threads(rows)[order],
        start_ns=start[order],
        end_ns=end[order],
        collectives=_collectives(rows, category, position),
        thread_names=_thread_names(trace.events),
        open_events=open_events,
    )


def _intern(rows: list[_Event]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    numbers: dict[str, int] = {}
    name = [numbers.setdefault(row.name if type(row.name) is str else str(row.name), len(numbers)) for row in rows]
    return tuple(numbers), np.array(name, dtype=np.int32)


def _times(rows: list[_Event], trace: _Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    start_us = np.array([row.ts for row in rows], dtype=np.float64)
    length_us = np.array([-1.0 if row.dur is None else row.dur for row in rows], dtype=np.float64)
    if len(rows) and not (np.isfinite(start_us).all() and np.abs(start_us).max() < 9e15):
        raise InputError("the trace holds times that are no times; capture the window again")
    start = trace.base_ns + np.rint(start_us * 1000.0).astype(np.int64)
    is_open = ~((length_us >= 0.0) & (length_us < 1e12))
    end = start + np.rint(np.where(is_open, 0.0, length_us) * 1000.0).astype(np.int64)
    last_us = max((event.ts for event in trace.events if event.ph in "Xi"), default=0.0)
    last = max(int(end.max(initial=0)), trace.base_ns + round(last_us * 1000.0))
    end[is_open] = np.maximum(start[is_open], last)
    return start, end, int(is_open.sum()) + sum(_is_unfinished(row) for row in rows)


def _is_unfinished(row: _Event) -> bool:
    if row.cat != "user_annotation" or b"finished" not in bytes(row.args):
        return False
    try:
        return not _STATE.decode(row.args).finished
    except msgspec.DecodeError:
        return False


def _categories(rows: list[_Event]) -> NDArray[np.int8]:
    known: dict[Any, int] = {}
    for text in {row.cat for row in rows if isinstance(row.cat, str)}:
        known[text] = int(_CATEGORIES.get(text.lower(), Category.OTHER))
    other = int(Category.OTHER)
    return np.array([known[row.cat] if type(row.cat) is str else other for row in rows], dtype=np.int8)


def _threads(rows: list[_Event]) -> NDArray[np.int64]:
    """Thread ids; the trace's own rows ("PyTorch Profiler") have none."""
    known: dict[Any, int] = {}
    for tid in {row.tid for row in rows if isinstance(row.tid, (int, str))}:
        known[tid] = _number(tid, -1)
    return np.array([known[row.tid] if type(row.tid) in (int, str) else -1 for row in rows], dtype=np.int64)


def _collectives(
    rows: list[_Event], category: NDArray[np.int8], position: NDArray[np.int64]
) -> dict[int, CollectiveArguments]:
    found: dict[int, CollectiveArguments] = {}
    for row in np.flatnonzero(category == Category.KERNEL).tolist():
        event = rows[row]
        if is_collective_kernel(event.name):
            arguments = _collective_arguments(event)
            if arguments is not None:
                found[int(position[row])] = arguments
    return found


def is_collective_kernel(name: object) -> bool:
    """Whether a device kernel of this name is a collective of NCCL, RCCL or MSCCL."""
    return isinstance(name, str) and _COLLECTIVE_KERNEL.match(name) is not None


def _collective_arguments(event: _Event) -> CollectiveArguments | None:
    try:
        said = _ARGUMENTS.decode(event.args)
    except msgspec.DecodeError:
        return None
    if not said.collective:
        return None
    sequence = said.sequence_upper if said.sequence_upper is not None else said.sequence_lower
    ends = [_number(said.source, -1), _number(said.destination, -1)]
    return CollectiveArguments(
        name=str(said.collective),
        group=str(said.group),
        sequence=_number(sequence, -1),
        elements=_number(said.elements, 0),
        group_size=_number(said.group_size, 0),
        ranks=_ranks(said.ranks),
        peer=max(ends) if min(ends) < 0 else -1,
    )


def _ranks(text: Any) -> tuple[int, ...]:
    """Ranks from "[0, 1]"; nothing from "[0, 1, ..., 127]" or anything else."""
    if not isinstance(text, str) or "." in text:
        return ()
    return tuple(int(number) for number in re.findall(r"\d{1,9}", text))


def _number(value: Any, default: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if abs(number) < 2**62 else default


def _thread_names(events: Iterable[_Event]) -> dict[int, str]:
    """Names of threads; a thread named twice keeps the more telling one (not the process's)."""
    names: dict[int, str] = {}
    for event in events:
        if event.ph == "M" and event.name == "thread_name" and type(event.tid) is int:
            try:
                names[event.tid] = _NAMED.decode(event.args).name
            except msgspec.DecodeError:
                continue
    return names
