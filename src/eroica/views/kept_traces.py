"""Raw traces of workers, where they are still there: of windows with `keep_traces`, and files that were diagnosed.

A kept window lies in the scratch directory of this host, named by job, window and process; what lies there is used only
if it says itself that it is the same worker's same window. Of diagnosed files the run directory holds the paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from eroica.archive.check import read_regular
from eroica.archive.store import SOURCES_FILE
from eroica.errors import InputError
from eroica.model.pattern import WorkerPattern
from eroica.settings import Settings
from eroica.summarize.facts import channel_series
from eroica.summarize.files import read_capture, read_window
from eroica.summarize.recorded import stage_recording
from eroica.summarize.staging import stage_window
from eroica.trace.kineto import read_trace
from eroica.views.lanes import Drawn, draw_whole
from eroica.wire.places import places

#: Values of a channel, where a viewer zooms.
_MOST_BINS = 4000
_MOST_SOURCES_BYTES = 64_000_000


@dataclass(frozen=True)
class Whereabouts:
    """Where raw traces of a window may lie.

    Attributes:
        job: Name of the job.
        environ: Environment, which says where scratch directories are.
        sources: Global rank -> trace file, of windows that were read from files.
    """

    job: str
    environ: Mapping[str, str]
    sources: Mapping[int, Path]


def read_sources(window_directory: Path) -> dict[int, Path]:
    """Trace files behind a window that was read from files, by global rank; empty where they were not written down."""
    try:
        text = read_regular(window_directory / SOURCES_FILE, _MOST_SOURCES_BYTES)
        return {rank: Path(name) for rank, name in msgspec.json.decode(text, type=dict[int, str]).items()}
    except (OSError, InputError, ValueError):
        return {}


def draw_kept(pattern: WorkerPattern, where: Whereabouts, settings: Settings) -> Drawn | None:
    """All of one worker from its raw trace; None where there is none.

    Raises:
        InputError: There is one, but it cannot be read.
    """
    source = where.sources.get(pattern.worker.global_rank)
    if source is not None:
        return _from_file(pattern, source, settings)
    directory = _directory(pattern, where)
    return _from_window(directory, settings) if directory is not None else None


def _from_file(pattern: WorkerPattern, path: Path, settings: Settings) -> Drawn | None:
    """A file that was diagnosed, if it is still the one that it was."""
    try:
        if not path.is_file() or path.stat().st_size != pattern.raw_bytes:
            return None
    except (OSError, ValueError):
        return None
    staged = stage_recording(read_trace(path, settings), pattern.worker.global_rank, settings)
    return draw_whole(staged, ())


def _directory(pattern: WorkerPattern, where: Whereabouts) -> Path | None:
    """The directory in which the agent of this host kept the worker's files."""
    worker = pattern.worker
    scratch = places({**where.environ, "EROICA_JOB": where.job or "job", "EROICA_HOST": worker.host or "host"}).scratch
    directory = scratch / f"window-{pattern.window_id}" / str(worker.pid)
    return directory if _is_same(directory / "capture.json", pattern) else None


def _is_same(path: Path, pattern: WorkerPattern) -> bool:
    """Whether a capture is that of the pattern: names and process ids come again."""
    try:
        capture = read_capture(path)
    except InputError:
        return False
    said = capture.worker, capture.window_id, capture.first_iteration, capture.last_iteration
    return said == (pattern.worker, pattern.window_id, pattern.first_iteration, pattern.last_iteration)


def _from_window(directory: Path, settings: Settings) -> Drawn:
    kept = read_window(directory / "capture.json", directory.parent / "hardware", settings)
    staged = stage_window(kept.capture, kept.events, kept.stacks, kept.flight, hardware=kept.samples)
    drawn = draw_whole(staged, channel_series(kept.capture, kept.samples, _MOST_BINS))
    return replace(drawn, clock=(kept.capture.worker.host, kept.capture.boundaries_ns[0]))
