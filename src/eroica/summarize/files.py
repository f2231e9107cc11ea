"""Read the files that one worker's window left on disk: for its pattern, and for a picture while they are kept.

Calls of send and receive name the other side only if their inputs are recorded, which makes the end of a trace cost 2.7
times as much. So only the probe, one iteration right before the window, records them, and an iteration with the same
calls in the same order is taken to go to the same sides.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from eroica.archive.load import read_regular
from eroica.errors import EroicaError, InputError
from eroica.hardware.store import Samples, read_samples
from eroica.model.window import SETUP_FILE, Capture, FlightEntry, joined_setup, read_setup
from eroica.settings import Settings, load_settings
from eroica.summarize.clock import WallClock
from eroica.summarize.pattern import summarize_worker
from eroica.trace.columns import DIRECT_CALLS
from eroica.trace.flight import read_flight
from eroica.trace.kineto import read_trace
from eroica.trace.stacks import StackTimeline, read_stacks
from eroica.trace.table import NO_EVENTS, Category, CollectiveArguments, EventTable
from eroica.wire.codec import encode_record
from eroica.wire.places import PROBE_FILE

_LARGEST_CAPTURE = 64_000_000
_SAMPLES_FILE = "samples.bin"
Found = TypeVar("Found")
_ONE_ITERATION = 2  # boundaries


class WindowFiles(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One worker's window.

    Attributes:
        capture: What the worker handed over, with what its agent found out about it.
        events: Its trace; sends and receives tell their other side where the probe told it. Empty where the worker
            ended before it had saved one.
        stacks: Sampled stacks of it and its children, None without them.
        samples: Hardware channels of its host, None without them.
        flight: The Flight Recorder's entries.
        has_trace: The worker lived long enough to save its trace.
        notes: What was damaged and is left out, and what the samples lack.
    """

    capture: Capture
    events: EventTable
    stacks: StackTimeline | None
    samples: Samples | None
    flight: tuple[FlightEntry, ...]
    has_trace: bool
    notes: tuple[str, ...]


def read_window(capture_path: Path, hardware: Path, settings: Settings) -> WindowFiles:
    """All files of one worker's window.

    Args:
        capture_path: The worker's capture.json; the others lie beside it.
        hardware: Directory of hardware samples.
        settings: Bound what is read of the trace.

    Raises:
        InputError: Capture or trace cannot be used; what else is missing or damaged is left out.
    """
    capture = read_capture(capture_path)
    notes: list[str] = []
    setup_path = capture_path.with_name(SETUP_FILE)
    outside = _optional(lambda: read_setup(setup_path), notes, setup_path)
    capture = msgspec.structs.replace(capture, setup=joined_setup(capture.setup, outside or {}))
    stacks_path = _beside(capture_path, capture.stacks_path or "stacks.json")
    of_children = sorted(capture_path.parent.glob("stacks-*[0-9].json"))
    stacks = _optional(lambda: read_stacks([_no_link(one) for one in (stacks_path, *of_children)]), notes, stacks_path)
    samples = _optional(lambda: read_samples(hardware), notes, hardware / _SAMPLES_FILE)
    flight_path = _beside(capture_path, capture.flight_path or "flight.json")
    flight = _optional(lambda: read_flight(_no_link(flight_path)), notes, flight_path)
    probe_path = capture_path.with_name(PROBE_FILE)
    sides = _optional(lambda: read_sides(probe_path), notes, probe_path)
    trace_path = _beside(capture_path, capture.trace_path or "trace.json")
    has_trace = bool(capture.trace_path) or _has_content(trace_path)
    events = read_trace(_no_link(trace_path), settings, links=True) if has_trace else NO_EVENTS
    if not events.header.has_wall_clock:
        raise InputError(
            f"{trace_path} is cut short and lost what its times count from: the window cannot be found in it"
        )
    return WindowFiles(
        capture=capture,
        events=name_sides(events, sides or (), capture),
        stacks=stacks,
        samples=samples,
        flight=tuple(flight or ()),
        has_trace=has_trace,
        notes=(*notes, *(samples.notes if samples is not None else ())),
    )


def read_capture(path: Path) -> Capture:
    """Read the capture that a worker handed over.

    Raises:
        InputError: It cannot be read, or is no capture.
    """
    try:
        return msgspec.json.decode(read_regular(path, _LARGEST_CAPTURE), type=Capture)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no capture: {error}") from error


def _beside(capture_path: Path, named: str) -> Path:
    """The file of this name beside the capture: what a training process says never leads out of its directory."""
    return capture_path.parent / Path(named).name


def _has_content(path: Path) -> bool:
    """Return whether the file holds anything: its place is made empty, the trace itself appears at once."""
    try:
        return path.lstat().st_size > 0
    except OSError:
        return False


def _no_link(path: Path) -> Path:
    """The path itself.

    Raises:
        InputError: It is a link, which may lead out of the window's directory.
    """
    if path.is_symlink():
        raise InputError(f"{path} is a link; a window's files lie in its own directory")
    return path


def _optional(read: Callable[[], Found], notes: list[str], path: Path) -> Found | None:
    """Call `read`; None if the file is missing, None and a note if it is damaged."""
    if not path.exists():
        return None
    try:
        return read()
    except InputError as error:
        notes.append(str(error))
        return None


def read_sides(path: Path) -> tuple[CollectiveArguments, ...]:
    """Read the other sides of the sends and receives of an iteration, in order; empty unless each of them tells it.

    Args:
        path: Trace of the iteration.

    Raises:
        InputError: It cannot be read.
    """
    probe = read_trace(path)
    told = [probe.collectives.get(row) for row in _calls(probe)]
    known = tuple(replace(one, elements=0) for one in told if one is not None)  # the next ones may be longer
    return known if len(known) == len(told) else ()


def name_sides(events: EventTable, sides: Sequence[CollectiveArguments], capture: Capture) -> EventTable:
    """The window's events, with what the calls of one iteration said on its own calls.

    Args:
        events: Of the window.
        sides: Of `read_sides`.
        capture: Of the window.
    """
    if not sides or len(capture.boundaries_ns) < _ONE_ITERATION:
        return events
    rows = _calls(events)
    edges = WallClock(capture.clocks).from_monotonic(capture.boundaries_ns)
    found = dict(events.collectives)
    for first, last in pairwise(np.searchsorted(events.start_ns[rows], edges).tolist()):
        found.update(_alike(events, rows[first:last], sides))
    return replace(events, collectives=found)


def _calls(events: EventTable) -> list[int]:
    """Rows of sends and receives, in order."""
    return np.flatnonzero(events.named(DIRECT_CALLS.__contains__, Category.OPERATOR)).tolist()


def _alike(
    events: EventTable, rows: Sequence[int], sides: Sequence[CollectiveArguments]
) -> dict[int, CollectiveArguments]:
    """Give an iteration's calls the arguments of the probe's calls; none if the calls are others."""
    kinds = [DIRECT_CALLS[events.name_of(row)] for row in rows]
    return dict(zip(rows, sides, strict=True)) if kinds == [one.name for one in sides] else {}


# --- one worker's files -> its pattern ---


def main(arguments: list[str]) -> int:
    """Run `python -m eroica.summarize.files CAPTURE_JSON HARDWARE_DIR OUT_FILE`, as the agent does at low priority.

    Returns:
        The exit status: 0, or 1 with one line on standard error.
    """
    try:
        summarize_files(*(Path(text) for text in arguments))
    except (EroicaError, OSError) as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 1
    return 0


def summarize_files(capture_path: Path, hardware: Path, out: Path) -> None:
    """Read a worker's files and write its pattern as `wire.codec.encode_record` makes it.

    Args:
        capture_path: The worker's capture.json.
        hardware: Directory of hardware samples; a missing or damaged one becomes a note.
        out: Written at once or not at all.

    Raises:
        InputError: Capture or trace cannot be used.
        OSError: The pattern cannot be written.
    """
    began = time.perf_counter()
    settings = load_settings()
    window = read_window(capture_path, hardware, settings)
    pattern = summarize_worker(window.capture, window.events, window.stacks, window.samples, window.flight, settings)
    files = (
        file for directory in (capture_path.parent, hardware) if directory.is_dir() for file in directory.iterdir()
    )
    pattern = msgspec.structs.replace(
        pattern,
        has_trace=window.has_trace,
        raw_bytes=sum(file.stat().st_size for file in files if file.is_file()),
        summarize_s=time.perf_counter() - began,
        notes=(*pattern.notes, *window.notes),
    )
    unfinished = out.with_name(out.name + ".part")
    unfinished.write_bytes(encode_record(pattern))
    unfinished.replace(out)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
