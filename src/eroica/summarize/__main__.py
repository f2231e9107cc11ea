"""`python -m eroica.summarize CAPTURE_JSON HARDWARE_DIR OUT_FILE`: one worker's files -> its pattern.

A process of its own at the lowest priority, so that it never competes with training. Exit status 0, or 1 with one line
on standard error.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from eroica.model.window import Capture

_PRIORITY = 19
Found = TypeVar("Found")


def main(arguments: list[str]) -> int:
    """Run the summary; the command's exit status."""
    from eroica.errors import EroicaError

    if len(arguments) != 3:
        sys.stderr.write("usage: python -m eroica.summarize CAPTURE_JSON HARDWARE_DIR OUT_FILE\n")
        return 1
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _step_back()
    try:
        summarize_files(*(Path(text) for text in arguments))
    except (EroicaError, OSError) as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 1
    return 0


def _step_back() -> None:
    """The lowest priority; where that is forbidden, the one we have."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    except OSError:
        return


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
    import msgspec

    from eroica.errors import InputError
    from eroica.hardware.store import read_samples
    from eroica.settings import load_settings
    from eroica.summarize.pattern import summarize_worker
    from eroica.summarize.setup import SETUP_FILE, joined_setup, read_setup
    from eroica.summarize.sides import name_sides, read_sides
    from eroica.trace.flight import read_flight
    from eroica.trace.kineto import read_trace
    from eroica.trace.stacks import read_stacks
    from eroica.wire.codec import encode_record
    from eroica.wire.places import PROBE_FILE

    began = time.perf_counter()
    capture = _read_capture(capture_path)
    notes: list[str] = []
    setup_path = capture_path.with_name(SETUP_FILE)
    outside = _optional(lambda: read_setup(setup_path), notes, setup_path)
    capture = msgspec.structs.replace(capture, setup=joined_setup(capture.setup, outside or {}))
    stacks_path = _beside(capture_path, capture.stacks_path or "stacks.json")
    stacks = _optional(lambda: read_stacks(stacks_path, stacks_path.with_name("stacks.meta.json")), notes, stacks_path)
    samples = _optional(lambda: read_samples(hardware), notes, hardware / "samples.bin")
    flight_path = _beside(capture_path, capture.flight_path or "flight.json")
    flight = _optional(lambda: read_flight(flight_path), notes, flight_path)
    probe_path = capture_path.with_name(PROBE_FILE)
    sides = _optional(lambda: read_sides(probe_path), notes, probe_path)
    trace_path = _beside(capture_path, capture.trace_path or "trace.json")
    events = read_trace(trace_path)
    if not events.header.has_wall_clock:
        raise InputError(
            f"{trace_path} is cut short and lost what its times count from: the window cannot be found in it"
        )
    events = name_sides(events, sides or (), capture)
    pattern = summarize_worker(capture, events, stacks, samples, flight or [], load_settings())
    pattern = msgspec.structs.replace(
        pattern,
        raw_bytes=_raw_bytes(capture_path.parent, hardware),
        summarize_s=time.perf_counter() - began,
        notes=(*pattern.notes, *notes, *(samples.notes if samples is not None else ())),
    )
    unfinished = out.with_name(out.name + ".part")
    unfinished.write_bytes(encode_record(pattern))
    unfinished.replace(out)


def _beside(capture_path: Path, named: str) -> Path:
    """The file of this name beside the capture: what a training process says never leads out of its directory."""
    return capture_path.parent / Path(named).name


def _read_capture(path: Path) -> Capture:
    import msgspec

    from eroica.errors import InputError
    from eroica.model.window import Capture

    try:
        return msgspec.json.decode(path.read_bytes(), type=Capture)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no capture: {error}") from error


def _optional(read: Callable[[], Found], notes: list[str], path: Path) -> Found | None:
    """What `read` finds; nothing if the file is missing, nothing and a note if it is damaged."""
    from eroica.errors import InputError

    if not path.exists():
        return None
    try:
        return read()
    except InputError as error:
        notes.append(str(error))
        return None


def _raw_bytes(*directories: Path) -> int:
    """Size of all files of the window that this summary read."""
    files = (file for directory in directories if directory.is_dir() for file in directory.iterdir())
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
