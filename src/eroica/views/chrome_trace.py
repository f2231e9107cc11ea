"""The Trace Event format of ui.perfetto.dev and chrome://tracing: workers as processes, lanes as threads.

All times are multiples of 1/8 microsecond. Viewers truncate start and length to nanoseconds separately, and drop nested
slices that then cross by a nanosecond; such multiples survive.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEP_NS = 125
_STEPS_PER_US = 8
#: Thread numbers of a process start at its number times this, so they are unique in the file.
_THREADS_OF_ONE = 1000
_LONGEST_NAME = 1000


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
        with unfinished.open("xb") as raw, contextlib.ExitStack() as stack:  # not through a link
            packed = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, 0)) if path.suffix == ".gz" else raw
            packed.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n'.encode())
            for at, event in enumerate(_events(processes)):
                packed.write(f"{',' * bool(at)}{json.dumps(event)}\n".encode())
            packed.write(b"]}\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _events(processes: Sequence[Process]) -> Iterator[dict[str, object]]:
    """Yield names and order of processes and threads, then slices and values; the first begins at 0."""
    starts = [(one.place, lane.start_ns[:1]) for one in processes for lane in one.lanes]
    starts += [(one.place, counter.start_ns[:1]) for one in processes for counter in one.counters]
    origin = min((int(place.steps(start)[0]) for place, start in starts if len(start)), default=0)
    for order, process in enumerate(processes):
        pid = process.number
        yield _meta("process_name", pid, 0, name=process.name)
        yield _meta("process_labels", pid, 0, labels=process.label)
        yield _meta("process_sort_index", pid, 0, sort_index=order)
        for number, lane in enumerate(process.lanes):
            thread = pid * _THREADS_OF_ONE + number + 1
            yield _meta("thread_name", pid, thread, name=lane.name[:_LONGEST_NAME])
            yield _meta("thread_sort_index", pid, thread, sort_index=number)
            yield from _slices(process, lane, thread, origin)
        for counter in process.counters:
            yield from _values(process, counter, origin)


def _meta(what: str, pid: int, tid: int, **facts: object) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": facts}


def _slices(process: Process, lane: Lane, thread: int, origin: int) -> Iterator[dict[str, object]]:
    start, end = process.place.steps(lane.start_ns) - origin, process.place.steps(lane.end_ns) - origin
    keep = start < end
    columns = (lane.function[keep].tolist(), start[keep].tolist(), end[keep].tolist())
    for function, begin, until in zip(*columns, strict=True):
        yield {
            "ph": "X",
            "name": lane.names[function][:_LONGEST_NAME],
            "cat": lane.categories[function],
            "pid": process.number,
            "tid": thread,
            "ts": begin / _STEPS_PER_US,
            "dur": (until - begin) / _STEPS_PER_US,
        }


def _values(process: Process, counter: Counter, origin: int) -> Iterator[dict[str, object]]:
    steps = process.place.steps(counter.start_ns) - origin
    for at, mean, highest in zip(steps.tolist(), counter.mean.tolist(), counter.highest.tolist(), strict=True):
        if at >= 0 and math.isfinite(mean):
            shares = {"mean": mean, "highest": highest if math.isfinite(highest) else mean}
            args = {name: round(100 * share, 1) for name, share in shares.items()}
            name = counter.name[:_LONGEST_NAME]
            yield {
                "ph": "C", "name": name, "pid": process.number, "tid": 0, "ts": at / _STEPS_PER_US, "args": args
            }  # fmt: skip
