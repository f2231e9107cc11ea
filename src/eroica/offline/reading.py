"""Read and summarize trace files, several at a time in processes of their own.

A reader is a program, not a copy of this process (`python -m eroica.offline.reading`): notebooks and scripts without a
main guard are safe. It reads one file, and costs only that if it is killed.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec

from eroica.errors import InputError
from eroica.hardware.host import parse_membership, parse_mounts, parse_quota, stat_files
from eroica.model.trace import Range, TraceSummary
from eroica.offline.discover import Source
from eroica.settings import Settings
from eroica.start import isolated
from eroica.summarize.recorded import summarize_recording
from eroica.trace.kineto import read_trace
from eroica.trace.nsight import is_database, read_nsight

_LAST_WORDS_BYTES = 4096
#: Is told the bytes of a file that was read, or given up.
Progress = Callable[[int], None]


#: What a reader is told: settings, path, rank, iterations that count, and process. A path is the file system's bytes as
#: latin-1: it need not be UTF-8.
Order = tuple[Settings, str, int, Range | None, int]


def read_one(
    path: Path, rank_hint: int, settings: Settings, only: Range | None = None, process: int = -1
) -> TraceSummary:
    """Read and summarize one file; what is wrong with it stands in the summary.

    Args:
        path: .json, .json.gz, or an export of Nsight Systems.
        rank_hint: Global rank that its name states, -1 without one.
        settings: All tunables.
        only: First and last iteration that count; None for all.
        process: Which of several processes in the file, -1 if it holds one.
    """
    began = time.perf_counter()
    size = 0
    try:
        size = path.stat().st_size
        events = read_nsight(path, process, settings) if is_database(path) else read_trace(path, settings)
        summary = summarize_recording(events, str(path), rank_hint, settings, only)
    except InputError as error:
        summary = TraceSummary(path=str(path), error=str(error))
    except OSError as error:
        summary = TraceSummary(path=str(path), error=f"{path} cannot be read: {error.strerror or error}")
    except MemoryError:
        summary = TraceSummary(path=str(path), error=f"{path} needs more memory than there is")
    pattern = summary.pattern
    if pattern is not None:
        pattern = msgspec.structs.replace(pattern, raw_bytes=size, summarize_s=time.perf_counter() - began)
    return msgspec.structs.replace(summary, pattern=pattern, process=process)


def read_all(
    sources: Sequence[Source],
    settings: Settings,
    progress: Progress = lambda size: None,
    only: Sequence[Range | None] = (),
) -> list[TraceSummary]:
    """Read and summarize files, the largest first.

    Args:
        sources: Traces.
        settings: All tunables; `readers` says how many at a time.
        progress: Is told the size of each file that is done.
        only: First and last iteration that count, for each file; empty for all.

    Returns:
        One summary a file, in their order.
    """
    which = only or [None] * len(sources)
    width = min(len(sources), settings.readers or cores())
    readers = _Readers(settings)
    largest_first = sorted(range(len(sources)), key=lambda at: -sources[at].size)

    def work(at: int) -> TraceSummary:
        source = sources[at]
        if width > 1:
            summary = readers.read(source, which[at])
        else:
            summary = read_one(source.path, source.rank, settings, which[at], source.process)
        progress(source.size)
        return summary

    if width <= 1:
        return list(map(work, range(len(sources))))
    pool = ThreadPoolExecutor(width)
    try:
        found = dict(zip(largest_first, pool.map(work, largest_first), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        readers.end()
        pool.shutdown()
    return [found[at] for at in range(len(sources))]


class _Readers:
    """Reads each file in a process of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def read(self, source: Source, only: Range | None) -> TraceSummary:
        """Return the summary of a file, or what its reader died of."""
        path = os.fsencode(source.path.absolute()).decode("latin-1")
        order = msgspec.json.encode((self._settings, path, source.rank, only, source.process))
        with tempfile.TemporaryFile() as words:
            process = subprocess.Popen(
                isolated("eroica.offline.reading"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
            self._running.add(process)
            if self._ended:  # an interrupt came meanwhile
                process.kill()
            data, _ = process.communicate(order)
            self._running.discard(process)
            if process.returncode:
                why = "reading was interrupted" if self._ended else _why_dead(process.returncode, words)
                return TraceSummary(path=str(source.path), error=f"{source.path}: {why}")
        summary = msgspec.msgpack.decode(data, type=TraceSummary)
        error = summary.error.replace(str(source.path.absolute()), str(source.path))
        return msgspec.structs.replace(summary, path=str(source.path), error=error)

    def end(self) -> None:
        """Kill the processes that still read."""
        self._ended = True
        for process in tuple(self._running):
            process.kill()


def _why_dead(status: int, words: IO[bytes]) -> str:
    if status == -signal.SIGKILL:
        return "the process that read it was killed, perhaps because memory ran out; set readers=1, or more memory"
    if status < 0:
        return f"the process that read it was ended by signal {-status}"
    words.seek(max(0, words.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
    lines = words.read().decode(errors="replace").strip().splitlines()
    return f"the process that read it failed: {lines[-1][:300] if lines else f'status {status}'}"


def cores() -> int:
    """Return how many cores this process may use: its affinity, and the quota of its cgroup."""
    allowed = len(os.sched_getaffinity(0))
    try:
        membership = parse_membership(Path("/proc/self/cgroup").read_text(encoding="utf-8"))
        mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        quotas = [parse_quota(file.read_text()) for file in stat_files(mounts, membership, "cpu.max")]
    except OSError:
        return allowed
    return max(1, min([allowed, *(math.ceil(quota) for quota in quotas if quota is not None)]))


# ---------------------------------------------------------------------- the reader's own process


def main() -> None:
    """Read one file."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    voice = os.dup(1)
    os.dup2(2, 1)  # whatever is printed by accident is no summary
    settings, path, rank, only, process = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    summary = read_one(Path(os.fsdecode(path.encode("latin-1"))), rank, settings, only, process)
    error = summary.error.encode("utf-8", "backslashreplace").decode()  # names of files need not be UTF-8
    with open(voice, "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(msgspec.msgpack.encode(msgspec.structs.replace(summary, path="", error=error)))


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
