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
from eroica.model.trace import Again, TraceSummary
from eroica.offline.cores import cores
from eroica.offline.discover import Source
from eroica.offline.readers import Reader
from eroica.settings import Settings
from eroica.summarize.recorded import summarize_recording
from eroica.trace.kineto import read_trace
from eroica.trace.nsight import is_database, read_nsight


class Progress(Protocol):
    """Whoever wants to know how far looking and reading are."""

    def look(self, entries: int, files: int) -> None:
        """So many entries of folders were looked at, and so many traces and dumps found among them."""

    def begin(self, files: int, size: int) -> None:
        """So many files with so many bytes in all are to be read."""

    def advance(self, size: int) -> None:
        """So many bytes more have been read."""

    def done(self, source: Source) -> None:
        """A file has been read, or given up."""


class Silent:
    """A `Progress` that shows nothing."""

    def look(self, entries: int, files: int) -> None:
        """Nothing to show."""

    def begin(self, files: int, size: int) -> None:
        """Nothing to show."""

    def advance(self, size: int) -> None:
        """Nothing to show."""

    def done(self, source: Source) -> None:
        """Nothing to show."""


def read_one(
    path: Path,
    rank_hint: int,
    settings: Settings,
    progress: Callable[[int], None] | None = None,
    again: Again | None = None,
    process: int = -1,
) -> TraceSummary:
    """Read and summarize one file; what is wrong with it stands in the summary.

    Args:
        path: .json or .json.gz.
        rank_hint: Global rank that its name states, -1 if it does not.
        settings: All tunables.
        progress: Called with the bytes of the file consumed since the last call.
        again: What is asked for beside it where it is read for the second time.
        process: Which of the processes in it, -1 where it holds one.
    """
    began = time.perf_counter()
    size = 0
    try:
        size = path.stat().st_size
        events = read_nsight(path, process, settings) if is_database(path) else read_trace(path, settings, progress)
        summary = summarize_recording(events, str(path), rank_hint, settings, again)
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
    return msgspec.structs.replace(summary, seconds=seconds, pattern=pattern, process=process)


def read_all(
    sources: Sequence[Source],
    settings: Settings,
    progress: Progress | None = None,
    again: Sequence[Again] = (),
) -> list[TraceSummary]:
    """Read and summarize files, the largest first.

    Args:
        sources: Traces.
        settings: All tunables; `readers` says how many at a time.
        progress: Is told how far it is.
        again: Per file what is asked for beside it, where all are read for the second time.

    Returns:
        One summary a file, in their order; what is wrong with a file stands in its summary.
    """
    watcher = progress or Silent()
    watcher.begin(len(sources), sum(source.size for source in sources))
    width = min(len(sources), settings.readers or cores())
    which: Sequence[Again | None] = again or [None] * len(sources)
    if width > 1:
        return _read_beside(sources, which, settings, watcher, width)
    return [_read_here(source, asked, settings, watcher) for source, asked in zip(sources, which, strict=True)]


def _read_here(source: Source, again: Again | None, settings: Settings, watcher: Progress) -> TraceSummary:
    try:
        return read_one(source.path, source.rank, settings, watcher.advance, again, source.process)
    finally:
        watcher.done(source)


def _read_beside(
    sources: Sequence[Source],
    again: Sequence[Again | None],
    settings: Settings,
    watcher: Progress,
    width: int,
) -> list[TraceSummary]:
    pending = sorted(range(len(sources)), key=lambda at: sources[at].size)
    summaries: dict[int, TraceSummary] = {}
    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(settings)) for _ in range(width)]
        for reader in readers:
            reader.give(pending[-1], sources[pending[-1]], again[pending.pop()])
        while len(summaries) < len(sources):
            for reader in _speaking(readers):
                at, summary = reader.hear(watcher.advance)
                if summary is None:
                    continue
                summaries[at] = summary
                watcher.done(sources[at])
                if pending:
                    reader.give(pending[-1], sources[pending[-1]], again[pending.pop()])
    return [summaries[at] for at in range(len(sources))]


def _speaking(readers: Sequence[Reader]) -> Iterator[Reader]:
    """Readers at work that have something to say; waits for one."""
    at_work = {reader.voice: reader for reader in readers if reader.at_work}
    for voice in wait(list(at_work)):
        assert isinstance(voice, int)
        yield at_work[voice]
