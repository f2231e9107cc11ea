"""Read and summarize trace files, several at a time in processes of their own.

A reader is a program, not a copy of this process (`python -m eroica.offline.reading`): notebooks and scripts without a
main guard are safe, and a reader that is killed costs only the file it was reading.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from eroica.errors import InputError
from eroica.hardware.limits import parse_membership, parse_mounts, stat_files
from eroica.model.trace import Range, TraceSummary
from eroica.offline.discover import Source
from eroica.settings import Settings
from eroica.start import isolated
from eroica.summarize.recorded import summarize_recording
from eroica.trace.kineto import read_trace
from eroica.trace.nsight import is_database, read_nsight

LENGTH = struct.Struct(">I")
MOST_FRAME_BYTES = 64_000_000
_LAST_WORDS_BYTES = 4096
#: Is told the bytes of a file that was read, or given up.
Progress = Callable[[int], None]


class Order(msgspec.Struct, frozen=True):
    """Tells a reader to read a file. A path is the file system's bytes as latin-1: it need not be UTF-8."""

    path: str
    rank: int
    only: Range | None = None
    process: int = -1


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
    seconds = time.perf_counter() - began
    pattern = summary.pattern
    if pattern is not None:
        pattern = msgspec.structs.replace(pattern, raw_bytes=size, summarize_s=seconds)
    return msgspec.structs.replace(summary, seconds=seconds, pattern=pattern, process=process)


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
    if width > 1:
        return _read_beside(sources, which, settings, progress, width)
    found = []
    for source, one in zip(sources, which, strict=True):
        found.append(read_one(source.path, source.rank, settings, one, source.process))
        progress(source.size)
    return found


def _read_beside(
    sources: Sequence[Source],
    only: Sequence[Range | None],
    settings: Settings,
    progress: Progress,
    width: int,
) -> list[TraceSummary]:
    pending: queue.SimpleQueue[int] = queue.SimpleQueue()
    for at in sorted(range(len(sources)), key=lambda at: -sources[at].size):
        pending.put(at)
    found: dict[int, TraceSummary] = {}
    readers = [_Reader(settings) for _ in range(width)]

    def work(reader: _Reader) -> None:
        while True:
            try:
                at = pending.get_nowait()
            except queue.Empty:
                return
            found[at] = reader.read(sources[at], only[at])
            progress(sources[at].size)

    pool = ThreadPoolExecutor(width)
    try:
        list(pool.map(work, readers))
    finally:
        while not pending.empty():
            pending.get_nowait()
        for reader in readers:
            reader.end()
        pool.shutdown()
    return [found[at] for at in range(len(sources))]


class _Reader:
    """A process that reads one file after another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._ended = False

    def read(self, source: Source, only: Range | None) -> TraceSummary:
        """Return the summary of a file, or what its reader died of."""
        path = os.fsencode(source.path.absolute()).decode("latin-1")
        data, why = self._ask(Order(path, source.rank, only, source.process))
        if why:
            return TraceSummary(path=str(source.path), error=f"{source.path}: {why}")
        summary = msgspec.msgpack.decode(data, type=TraceSummary)
        error = summary.error.replace(str(source.path.absolute()), str(source.path))
        return msgspec.structs.replace(summary, path=str(source.path), error=error)

    def end(self) -> None:
        """Kill the process and wait until it is gone."""
        self._ended = True
        if self._process is not None:
            self._gone(self._process)
        self._words.close()

    def _ask(self, order: Order) -> tuple[bytes, str]:
        """Return the answer, or why there is none."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return b"", self._why_dead(process)
        length = process.stdout.read(LENGTH.size)
        size = LENGTH.unpack(length)[0] if len(length) == LENGTH.size else -1
        if size > MOST_FRAME_BYTES:
            self._gone(process)
            return b"", f"the process that read it says more than {MOST_FRAME_BYTES} bytes about it"
        data = process.stdout.read(size) if size >= 0 else b""
        return (data, "") if len(data) == size else (b"", self._why_dead(process))

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            isolated("eroica.offline.reading"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._process = process
        if self._ended:  # an interrupt came meanwhile
            process.kill()
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        return process

    def _gone(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what it was still to read
                assert stream is not None
                stream.close()
        self._process = None

    def _why_dead(self, process: subprocess.Popen[bytes]) -> str:
        status = process.wait()
        self._gone(process)
        if self._ended:
            return "reading was interrupted"
        if status == -signal.SIGKILL:
            return "the process that read it was killed, perhaps because memory ran out; set readers=1, or more memory"
        if status < 0:
            return f"the process that read it was ended by signal {-status}"
        self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
        words = self._words.read().decode(errors="replace").strip().splitlines()
        return f"the process that read it failed: {words[-1][:300] if words else f'status {status}'}"


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


def parse_quota(cpu_max: str) -> float | None:
    """Return the cores that `cpu.max` grants ("200000 100000" is two), None without a limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None
    return int(quota) / int(period)


# ---------------------------------------------------------------------- the reader's own process


def main() -> None:
    """Read files until the parent is gone."""
    voice = os.dup(1)
    os.dup2(2, 1)  # whatever is printed by accident is no summary
    orders = open(0, "rb", closefd=False)  # noqa: SIM115 - it lasts as long as the process
    settings = msgspec.json.decode(orders.readline(), type=Settings)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    for line in orders:
        order = msgspec.json.decode(line, type=Order)
        path = Path(os.fsdecode(order.path.encode("latin-1")))
        summary = read_one(path, order.rank, settings, order.only, order.process)
        error = summary.error.encode("utf-8", "backslashreplace").decode()  # names of files need not be UTF-8
        data = msgspec.msgpack.encode(msgspec.structs.replace(summary, path="", error=error))
        frame = memoryview(LENGTH.pack(len(data)) + data)
        while frame:
            frame = frame[os.write(voice, frame) :]


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
