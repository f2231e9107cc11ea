"""`python -m eroica.summarize CAPTURE_JSON HARDWARE_DIR OUT_FILE`: one worker's files -> its pattern.

A process of its own, which the agent starts at the lowest priority, so that it does not compete with training. Exit
status 0, or 1 with one line on standard error.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Run the summary; the command's exit status."""
    from eroica.errors import EroicaError

    if len(arguments) != 3:
        sys.stderr.write("usage: python -m eroica.summarize CAPTURE_JSON HARDWARE_DIR OUT_FILE\n")
        return 1
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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
    import msgspec

    from eroica.settings import load_settings
    from eroica.summarize.files import read_window
    from eroica.summarize.pattern import summarize_worker
    from eroica.wire.codec import encode_record

    began = time.perf_counter()
    settings = load_settings()
    window = read_window(capture_path, hardware, settings)
    pattern = summarize_worker(window.capture, window.events, window.stacks, window.samples, window.flight, settings)
    pattern = msgspec.structs.replace(
        pattern,
        has_trace=window.has_trace,
        raw_bytes=_raw_bytes(capture_path.parent, hardware),
        summarize_s=time.perf_counter() - began,
        notes=(*pattern.notes, *window.notes),
    )
    unfinished = out.with_name(out.name + ".part")
    unfinished.write_bytes(encode_record(pattern))
    unfinished.replace(out)


def _raw_bytes(*directories: Path) -> int:
    """Size of all files of the window that this summary read."""
    files = (file for directory in directories if directory.is_dir() for file in directory.iterdir())
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
