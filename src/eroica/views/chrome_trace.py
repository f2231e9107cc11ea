"""The Trace Event format of ui.perfetto.dev and chrome://tracing: workers as processes, lanes as threads.

All times are multiples of 1/8 microsecond. Viewers truncate start and length to nanoseconds separately, and drop nested
slices that then cross by a nanosecond; such multiples survive.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEP_NS = 125
_STEPS_PER_US = 8
#: Thread numbers of a process start at its number times this, so they are unique in the file.
_THREADS_OF_ONE = 1000
_LONGEST_NAME = 1000
_GZIP_LEVEL = 6


@dataclass(frozen=True, eq=False)
class Lane:
    """One row of N nested slices.

    Attributes:
        name: Name of the row.
        start_ns: Time since the start of the worker's window, by its own clock; rising, the longer first. float64 [N].
        end_ns: float64 [N].
        function: Place in `names`. int64 [N].
        names: Functions.
        categories: Words to filter by, one per function.
    """

    name: str
    start_ns: Floats
    end_ns: Floats
    function: NDArray[np.int64]
    names: Sequence[str]
    categories: Sequence[str]


@dataclass(frozen=True, eq=False)
class Counter:
    """A hardware channel as a row of V values.

    Attributes:
        name: Name of the row.
        start_ns: Start of each value, as in `Lane`. float64 [V].
        mean: 0-1; NaN is not drawn. float64 [V].
        highest: float64 [V].
    """

    name: str
    start_ns: Floats
    mean: Floats
    highest: Floats


@dataclass(frozen=True)
class OnAxis:
    """Place of a worker's window: axis time = offset_ns + rate * time since the start of its window."""

    offset_ns: float = 0.0
    rate: float = 1.0

    def steps(self, since_start_ns: Floats) -> NDArray[np.int64]:
        """Return times on the axis in steps of `STEP_NS`."""
        steps: NDArray[np.int64] = np.rint((self.offset_ns + self.rate * since_start_ns) / STEP_NS).astype(np.int64)
        return steps


@dataclass(frozen=True, eq=False)
class Process:
    """One worker: its number in the file (from 1), name, a few words beside it, and its rows."""

    number: int
    name: str
    label: str
    place: OnAxis
    lanes: Sequence[Lane]
    counters: Sequence[Counter]


def write_trace(path: Path, processes: Sequence[Process], about: Mapping[str, object]) -> None:
    """Write a trace, compressed if the file's name ends in .gz; the file appears whole or not at all.

    Args:
        path: The file.
        processes: Workers from top to bottom.
        about: JSON-able facts about the trace.

    Raises:
        OSError: The file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    try:
        with _opened(unfinished, path.suffix == ".gz") as file:
            file.write('{"displayTimeUnit":"ms","otherData":')
            file.write(json.dumps(about))
            file.write(',"traceEvents":[\n')
            for at, event in enumerate(_events(processes)):
                file.write(",\n" + event if at else event)
            file.write("\n]}\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path, compressed: bool) -> Iterator[TextIO]:
    if not compressed:
        with path.open("x", encoding="utf-8") as file:  # not through a link
            yield file
        return
    with (
        path.open("xb") as raw,
        gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, 0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as text,
    ):
        yield text


def _events(processes: Sequence[Process]) -> Iterator[str]:
    origin = min((_first(one) for one in processes), default=0)
    for order, process in enumerate(processes):
        yield from _named(process, order)
    for process in processes:
        for number, lane in enumerate(process.lanes):
            yield from _slices(process, lane, _thread(process, number), origin)
        for counter in process.counters:
            yield from _values(process, counter, origin)


def _first(process: Process) -> int:
    """Return the first step that a process uses."""
    starts = [lane.start_ns for lane in process.lanes] + [counter.start_ns for counter in process.counters]
    starts = [start for start in starts if len(start)]
    return min((int(process.place.steps(start[:1])[0]) for start in starts), default=2**62)


def _thread(process: Process, number: int) -> int:
    return process.number * _THREADS_OF_ONE + number + 1


def _named(process: Process, order: int) -> Iterator[str]:
    """Yield names and order of a process and its threads."""
    pid = process.number
    yield _meta("process_name", pid, 0, name=process.name[:_LONGEST_NAME])
    yield _meta("process_labels", pid, 0, labels=process.label[:_LONGEST_NAME])
    yield _meta("process_sort_index", pid, 0, sort_index=order)
    for number, lane in enumerate(process.lanes):
        thread = _thread(process, number)
        yield _meta("thread_name", pid, thread, name=lane.name[:_LONGEST_NAME])
        yield _meta("thread_sort_index", pid, thread, sort_index=number)


def _meta(what: str, pid: int, tid: int, **facts: object) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": facts})


def _slices(process: Process, lane: Lane, thread: int, origin: int) -> Iterator[str]:
    start, end = process.place.steps(lane.start_ns) - origin, process.place.steps(lane.end_ns) - origin
    keep = start < end
    heads = [
        f'{{"ph":"X","name":{json.dumps(name[:_LONGEST_NAME])},"cat":{json.dumps(category)},'
        f'"pid":{process.number},"tid":{thread},"ts":'
        for name, category in zip(lane.names, lane.categories, strict=True)
    ]
    columns = (lane.function[keep].tolist(), start[keep].tolist(), (end - start)[keep].tolist())
    for function, at, length in zip(*columns, strict=True):
        yield f'{heads[function]}{_us(at)},"dur":{_us(length)}}}'


def _us(steps: int) -> str:
    """Return steps as exact microseconds."""
    whole, eighths = divmod(steps, _STEPS_PER_US)
    return f"{whole}.{eighths * STEP_NS:03d}" if eighths else str(whole)


def _values(process: Process, counter: Counter, origin: int) -> Iterator[str]:
    steps = process.place.steps(counter.start_ns) - origin
    name = json.dumps(counter.name[:_LONGEST_NAME])
    for at, mean, highest in zip(steps.tolist(), counter.mean.tolist(), counter.highest.tolist(), strict=True):
        if at >= 0 and math.isfinite(mean):
            top = highest if math.isfinite(highest) else mean
            args = f'"mean":{100 * mean:.1f},"highest":{100 * top:.1f}'
            yield f'{{"ph":"C","name":{name},"pid":{process.number},"tid":0,"ts":{_us(at)},"args":{{{args}}}}}'
