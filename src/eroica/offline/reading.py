"""Trace files -> summaries: one file here, several in processes of their own, as many at a time as there are cores.

A reader is a program (`python -m eroica.offline`), not a copy of this process: notebooks, threads and scripts without a
main guard are safe, and Ctrl-C reaches only the parent. A reader that is killed costs the file it was reading. When the
parent goes, in whatever way, its readers go: their input ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol

import msgspec

from eroica.errors import InputError
from eroica.model.trace import TraceSummary
from eroica.offline.cores import cores
from eroica.offline.discover import Source
from eroica.offline.readers import Reader
from eroica.settings import Settings
from eroica.summarize.recorded import summarize_recording
from eroica.trace.kineto import read_trace


class Progress(Protocol):
    """Whoever wants to know how far reading is."""

    def begin(self, files: int, size: int) -> None:
        """So many files with so many bytes in all are to be read."""

    def advance(self, size: int) -> None:
        """So many bytes more have been read."""

    def done(self, source: Source) -> None:
        """A file has been read, or given up."""


class Silent:
    """A `Progress` that shows nothing."""

    def begin(self, files: int, size: int) -> None:
        """Nothing to show."""

    def advance(self, size: int) -> None:
        """Nothing to show."""

    def done(self, source: Source) -> None:
        """Nothing to show."""


def read_one(
    path: Path, rank_hint: int, settings: Settings, progress: Callable[[int], None] | None = None
) -> TraceSummary:
    """Read and summarize one file; what is wrong with it stands in the summary.

    Args:
        path: .json or .json.gz.
        rank_hint: Global rank that its name states, -1 if it does not.
        settings: All tunables.
        progress: Called with the bytes of the file consumed since the last call.
    """
    began = time.perf_counter()
    size = 0
    try:
        size = path.stat().st_size
        summary = summarize_recording(read_trace(path, settings, progress), str(path), rank_hint, settings)
    except InputError as error:
        summary = TraceSummary(path=str(path), error=str(error))
    except OSError as error:
        summary = TraceSummary(path=str(path), error=f"{path} cannot be read: {error.strerror or error}")
    except MemoryError:
        summary = TraceSummary(path=str(path), error=f"{path} needs more memory than there is")
    seconds = time.perf_counter() - began
    pattern = summary.pattern
    if pattern is not None:
        pattern = msgspec.structs.replace(pattern, raw_bytes=size, summarize_s=seconds)
    return msgspec.structs.replace(summary, seconds=seconds, pattern=pattern)


def read_all(sources: Sequence[Source], settings: Settings, progress: Progress | None = None) -> list[TraceSummary]:
    """Read and summarize files, the largest first.

    Args:
        sources: Traces.
        settings: All tunables; `readers` says how many at a time.
        progress: Is told how far it is.

    Returns:
        One summary a file, in their order; what is wrong with a file stands in its summary.
    """
    watcher = progress or Silent()
    watcher.begin(len(sources), sum(source.size for source in sources))
    width = min(len(sources), settings.readers or cores())
    if width > 1:
        return _read_beside(sources, settings, watcher, width)
    return [_read_here(source, settings, watcher) for source in sources]


def _read_here(source: Source, settings: Settings, watcher: Progress) -> TraceSummary:
    try:
        return read_one(source.path, source.rank, settings, watcher.advance)
    finally:
        watcher.done(source)


def _read_beside(sources: Sequence[Source], settings: Settings, watcher: Progress, width: int) -> list[TraceSummary]:
    pending = sorted(range(len(sources)), key=lambda at: sources[at].size)
    summaries: dict[int, TraceSummary] = {}
    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(settings)) for _ in range(width)]
        for reader in readers:
            reader.give(pending[-1], sources[pending.pop()])
        while len(summaries) < len(sources):
            for reader in _speaking(readers):
                at, summary = reader.hear(watcher.advance)
                if summary is None:
                    continue
                summaries[at] = summary
                watcher.done(sources[at])
                if pending:
                    reader.give(pending[-1], sources[pending.pop()])
    return [summaries[at] for at in range(len(sources))]


def _speaking(readers: Sequence[Reader]) -> Iterator[Reader]:
    """Readers at work that have something to say; waits for one."""
    at_work = {reader.voice: reader for reader in readers if reader.at_work}
    for voice in wait(list(at_work)):
        assert isinstance(voice, int)
        yield at_work[voice]
