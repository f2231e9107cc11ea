"""Lanes and counters of one worker, from the timeline in its pattern or from its whole raw trace.

Raw traces exist for windows with `keep_traces` and for files that were diagnosed. A kept window lies in the scratch
directory of this host; it is used only if its capture names the same worker and window. The run directory holds the
paths of diagnosed files.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.archive.forget import SOURCES_FILE
from eroica.archive.load import read_regular
from eroica.errors import InputError
from eroica.localize.axis import Place
from eroica.model.pattern import FunctionKey, Timeline, WorkerPattern
from eroica.model.series import decode_series
from eroica.settings import Settings
from eroica.summarize.facts import ChannelSeries, channel_series
from eroica.summarize.files import read_capture, read_window
from eroica.summarize.recorded import stage_recording
from eroica.summarize.staging import Staged, stage_window
from eroica.summarize.strands import Strand, find_strands
from eroica.summarize.sweep import nest
from eroica.trace.kineto import read_trace
from eroica.wire.places import places

#: Slices of one worker with which viewers stay quick.
_MOST_EVENTS = 250_000
_MOST_DEPTH = 255
#: Values of a channel.
_MOST_BINS = 4000
_MOST_SOURCES_BYTES = 64_000_000


@dataclass(frozen=True, eq=False)
class Drawn:
    """The rows of one worker.

    Attributes:
        lanes: Threads and streams, the critical path first.
        counters: Hardware channels.
        iterations: First and last captured iteration that is shown, 0-based.
        start_ns: Start of these, after the start of the worker's window.
        dropped: Executions that are missing.
        is_whole: Whether they come from a whole trace.
        clock: Host, and start of the worker's window by that host's clock, nanoseconds; None if unknown.
    """

    lanes: tuple[Lane, ...]
    counters: tuple[Counter, ...]
    iterations: tuple[int, int]
    start_ns: float
    dropped: int = 0
    is_whole: bool = False
    clock: tuple[str, int] | None = None


def draw_timeline(timeline: Timeline) -> Drawn:
    """Return the critical path of one iteration.

    Raises:
        InputError: The timeline is damaged.
    """
    track, origin_ns, duration_ns = timeline.critical, timeline.start_us * 1e3, timeline.duration_us * 1e3
    if track is None or not (np.isfinite(origin_ns) and 0 < duration_ns < np.inf):
        raise InputError(f"a timeline of {timeline.duration_us} µs from {timeline.start_us} µs on is damaged")
    function = decode_series(track.function, np.int32).astype(np.int64)
    start, length = (
        decode_series(one, np.float32).astype(np.float64) * 1e3 for one in (track.start_us, track.duration_us)
    )
    names = len(track.names)
    fits = len(function) == len(start) == len(length) and len(track.kinds) == names and len(track.phases) in (0, names)
    if not fits or (len(function) and not (function.min() >= 0 and function.max() < names)):
        raise InputError("its series do not fit together")
    if not (np.isfinite(start + length).all() and (np.abs(start) <= 2 * duration_ns).all()):
        raise InputError("its timeline has times that cannot be")
    order = np.argsort(start, kind="stable")
    start, function = start[order], function[order]
    end = np.minimum(start + length[order], np.append(start[1:], np.inf))
    phases = track.phases or ("other",) * names
    categories = [_category(kind, phase) for kind, phase in zip(track.kinds, phases, strict=True)]
    lane = Lane("critical path", start + origin_ns, end + origin_ns, function, track.names, categories)
    return Drawn((lane,), (), (timeline.iteration,) * 2, origin_ns, track.dropped)


def _category(kind: str, phase: str) -> str:
    return kind if phase == "other" else f"{kind},{phase}"


# --- whole traces ---


def draw_whole(staged: Staged, channels: Sequence[ChannelSeries]) -> Drawn:
    """Return the captured iterations of a worker, as many around the middle one as viewers can take."""
    edges = staged.scene.edges_ns
    first, last = _iterations(len(edges) - 1, len(staged.scene.events))
    span = int(edges[first]), int(edges[last + 1])
    strands = find_strands(staged, span)
    origin = int(edges[0])
    lanes = tuple(_whole(one, strands.keys, origin) for one in (strands.critical, *strands.others))
    around = (float(span[0] - origin), float(span[1] - origin))
    return Drawn(
        tuple(one for one in lanes if len(one.start_ns)),
        tuple(_counter(one, around) for one in channels),
        (first, last),
        around[0],
        is_whole=True,
    )


def _counter(series: ChannelSeries, span: tuple[float, float]) -> Counter:
    """Return the part of a channel that begins in a span."""
    keep = (series.start_ns >= span[0]) & (series.start_ns < span[1])
    name = f"{series.name} in %, measured {series.per_s:.3g} times a second"
    return Counter(name, series.start_ns[keep].astype(np.float64), series.mean[keep], series.highest[keep])


def _iterations(count: int, events: int) -> tuple[int, int]:
    """Return the first and last iteration to draw."""
    wanted = max(min(count, int(_MOST_EVENTS * count / max(events, 1))), 1)
    first = min(max(count // 2 - wanted // 2, 0), count - wanted)
    return first, first + wanted - 1


def _whole(strand: Strand, keys: Sequence[FunctionKey], origin_ns: int) -> Lane:
    spans = strand.spans
    used, function = np.unique(spans.function, return_inverse=True)
    named = [keys[number] for number in used.tolist()]
    shallow = nest(spans.start, spans.end).depth_N <= _MOST_DEPTH if len(spans.start) else slice(0)
    return Lane(
        strand.name,
        (spans.start - origin_ns).astype(np.float64)[shallow],
        (spans.end - origin_ns).astype(np.float64)[shallow],
        function.astype(np.int64)[shallow],
        [key.name for key in named],
        [_category(key.kind, key.phase) for key in named],
    )


# --- raw traces that were kept ---


def read_sources(window_directory: Path) -> dict[int, Path]:
    """Return the trace files of a diagnosed window by global rank."""
    try:
        text = read_regular(window_directory / SOURCES_FILE, _MOST_SOURCES_BYTES)
        return {rank: Path(name) for rank, name in msgspec.json.decode(text, type=dict[int, str]).items()}
    except (OSError, InputError, ValueError):
        return {}


def draw_kept(
    pattern: WorkerPattern, job: str, environ: Mapping[str, str], sources: Mapping[int, Path], settings: Settings
) -> Drawn | None:
    """Return all of one worker from its raw trace; None where there is none.

    Args:
        pattern: The worker's.
        job: Name of the job.
        environ: Environment that names the scratch directory.
        sources: Global rank -> diagnosed trace file.
        settings: All tunables.

    Raises:
        InputError: The trace cannot be read.
    """
    worker, source = pattern.worker, sources.get(pattern.worker.global_rank)
    if source is not None:
        try:
            if not source.is_file() or source.stat().st_size != pattern.raw_bytes:  # it has changed
                return None
        except (OSError, ValueError):
            return None
        return draw_whole(stage_recording(read_trace(source, settings), worker.global_rank, settings), ())
    scratch = places({**environ, "EROICA_JOB": job or "job", "EROICA_HOST": worker.host or "host"}).scratch
    file = scratch / f"window-{pattern.window_id}" / str(worker.pid) / "capture.json"
    try:
        said = read_capture(file)
    except InputError:
        return None
    found = said.worker, said.window_id, said.first_iteration, said.last_iteration
    if found != (worker, pattern.window_id, pattern.first_iteration, pattern.last_iteration):  # names come again
        return None
    kept = read_window(file, file.parent.parent / "hardware", settings)
    staged = stage_window(kept.capture, kept.events, kept.stacks, kept.flight, hardware=kept.samples)
    drawn = draw_whole(staged, channel_series(kept.capture, kept.samples, _MOST_BINS))
    return replace(drawn, clock=(kept.capture.worker.host, kept.capture.boundaries_ns[0]))


# --- the file ---


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


def write_trace(
    path: Path,
    drawn: Mapping[int, Drawn],
    places: Mapping[int, Place],
    titles: Mapping[int, tuple[str, str]],
    about: Mapping[str, object],
) -> None:
    """Write a trace, compressed if the file's name ends in .gz; the file appears whole or not at all.

    Args:
        path: The file.
        drawn: Global rank -> rows, from top to bottom.
        places: Global rank -> where the worker's window lies.
        titles: Global rank -> its name, and a few words beside it.
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
            for at, event in enumerate(_events(drawn, places, titles)):
                packed.write(f"{',' * bool(at)}{json.dumps(event)}\n".encode())
            packed.write(b"]}\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _events(
    drawn: Mapping[int, Drawn], places: Mapping[int, Place], titles: Mapping[int, tuple[str, str]]
) -> Iterator[dict[str, object]]:
    """Yield names and order of processes and threads, then slices and values; the first begins at 0."""
    starts = [(places[rank], lane.start_ns[:1]) for rank, one in drawn.items() for lane in one.lanes]
    starts += [(places[rank], counter.start_ns[:1]) for rank, one in drawn.items() for counter in one.counters]
    origin = min((int(_steps(place, first_ns)[0]) for place, first_ns in starts if len(first_ns)), default=0)
    for order, (rank, one) in enumerate(drawn.items()):
        pid, (name, label) = rank + 1, titles[rank]
        yield _meta("process_name", pid, 0, name=name)
        yield _meta("process_labels", pid, 0, labels=label)
        yield _meta("process_sort_index", pid, 0, sort_index=order)
        for number, lane in enumerate(one.lanes):
            thread = pid * _THREADS_OF_ONE + number + 1
            yield _meta("thread_name", pid, thread, name=lane.name[:_LONGEST_NAME])
            yield _meta("thread_sort_index", pid, thread, sort_index=number)
            start, end = (_steps(places[rank], time_ns) - origin for time_ns in (lane.start_ns, lane.end_ns))
            yield from _slices(lane, pid, thread, start, end)
        for counter in one.counters:
            yield from _values(counter, pid, _steps(places[rank], counter.start_ns) - origin)


def _steps(place: Place, since_start_ns: Floats) -> NDArray[np.int64]:
    """Return times after the start of a worker's window as steps of `STEP_NS` on the axis."""
    return np.rint((place.offset_ns + (1 + place.drift) * since_start_ns) / STEP_NS).astype(np.int64)


def _meta(what: str, pid: int, tid: int, **facts: object) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": facts}


def _slices(
    lane: Lane, pid: int, thread: int, start: NDArray[np.int64], end: NDArray[np.int64]
) -> Iterator[dict[str, object]]:
    keep = start < end
    columns = (lane.function[keep].tolist(), start[keep].tolist(), end[keep].tolist())
    for function, begin, until in zip(*columns, strict=True):
        yield {
            "ph": "X",
            "name": lane.names[function][:_LONGEST_NAME],
            "cat": lane.categories[function],
            "pid": pid,
            "tid": thread,
            "ts": begin / _STEPS_PER_US,
            "dur": (until - begin) / _STEPS_PER_US,
        }


def _values(counter: Counter, pid: int, steps: NDArray[np.int64]) -> Iterator[dict[str, object]]:
    name = counter.name[:_LONGEST_NAME]
    for at, mean, highest in zip(steps.tolist(), counter.mean.tolist(), counter.highest.tolist(), strict=True):
        if at >= 0 and math.isfinite(mean):
            shares = {"mean": mean, "highest": highest if math.isfinite(highest) else mean}
            args = {name: round(100 * share, 1) for name, share in shares.items()}
            yield {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at / _STEPS_PER_US, "args": args}
