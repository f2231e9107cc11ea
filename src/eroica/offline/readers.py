"""One reader process as its parent sees it, and what the two say to each other.

Down its standard input: one line of JSON with the settings, then one line a file (`Order`). Up its standard output:
frames of four bytes of length (big-endian), one letter, and the rest: "p" and a number of bytes consumed, or "s" and a
summary as MessagePack. What a dying reader writes to standard error is kept for the note about its file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import tempfile
from collections.abc import Callable
from types import TracebackType
from typing import IO

import msgspec

from eroica.model.trace import Again, TraceSummary
from eroica.offline.discover import Source
from eroica.settings import Settings
from eroica.start import isolated

LENGTH = struct.Struct(">I")
COUNT = struct.Struct(">Q")
MOST_FRAME_BYTES = 64_000_000
_LAST_WORDS_BYTES = 4096


class Order(msgspec.Struct, frozen=True):
    """Read this file. Paths are the bytes of the file system, as latin-1: they need not be UTF-8."""

    path: str
    rank: int
    again: Again | None = None
    process: int = -1


class Reader:
    """A process that reads one file after another."""

    def __init__(self, settings: Settings) -> None:
        """Nothing runs before the first file is given."""
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None
        self._buffer = bytearray()
        self._task: tuple[int, Source] | None = None
        self._told = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def at_work(self) -> bool:
        """It has a file to read."""
        return self._task is not None

    @property
    def voice(self) -> int:
        """Descriptor that becomes readable when there is something to `hear`."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def give(self, number: int, source: Source, again: Again | None = None) -> None:
        """Let it read a file.

        Args:
            number: What `hear` calls it.
            source: The file.
            again: What is asked for beside it where it is read for the second time.
        """
        self._task, self._told = (number, source), 0
        if self._process is None:
            self._start()
        path = os.fsencode(source.path.absolute()).decode("latin-1")
        self._say(msgspec.json.encode(Order(path, source.rank, again, source.process)))

    def hear(self, advance: Callable[[int], None]) -> tuple[int, TraceSummary | None]:
        """Take what it says; call it when `voice` is readable.

        Args:
            advance: Is told the bytes that it has consumed.

        Returns:
            The number of its file, and the summary once that is there. A reader that has died hands in what it died of.
        """
        assert self._task is not None
        number, source = self._task
        data = os.read(self.voice, 1 << 20)
        self._buffer += data
        summary = None if data else self._obituary(source)
        for letter, body in self._frames():
            if letter == b"p":
                self._told += COUNT.unpack(body)[0]
                advance(COUNT.unpack(body)[0])
            else:
                summary = msgspec.msgpack.decode(body, type=TraceSummary)
        if len(self._buffer) >= LENGTH.size and LENGTH.unpack_from(self._buffer)[0] > MOST_FRAME_BYTES:
            self.end()
            summary = _failed(source, f"the process that read it says more than {MOST_FRAME_BYTES} bytes about it")
        if summary is None:
            return number, None
        self._task = None
        error = summary.error.replace(str(source.path.absolute()), str(source.path))
        return number, msgspec.structs.replace(summary, path=str(source.path), error=error)

    def end(self) -> None:
        """Kill it, whatever it does, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        if self._words is not None:
            self._words.close()
        self._process = self._words = None
        self._buffer.clear()

    def _start(self) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            isolated("eroica.offline"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            bufsize=0,
            start_new_session=True,
        )
        self._say(msgspec.json.encode(self._settings))

    def _say(self, line: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; `hear` will find out
            self._process.stdin.write(line + b"\n")

    def _frames(self) -> list[tuple[bytes, bytes]]:
        found = []
        while len(self._buffer) >= LENGTH.size:
            length = LENGTH.unpack_from(self._buffer)[0]
            end = LENGTH.size + length
            if len(self._buffer) < end or length > MOST_FRAME_BYTES:
                break
            found.append((bytes(self._buffer[4:5]), bytes(self._buffer[5:end])))
            del self._buffer[:end]
        return found

    def _obituary(self, source: Source) -> TraceSummary:
        """What is said of the file whose reader has died."""
        assert self._process is not None and self._words is not None
        status = self._process.wait()
        self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
        words = self._words.read().decode(errors="replace").strip().splitlines()
        if status == -signal.SIGKILL:
            why = "the process that read it was killed, perhaps because memory ran out; set readers=1, or more memory"
        elif status < 0:
            why = f"the process that read it was ended by signal {-status}"
        else:
            why = f"the process that read it failed: {words[-1][:300] if words else f'status {status}'}"
        self.end()
        return _failed(source, why)


def _failed(source: Source, why: str) -> TraceSummary:
    return TraceSummary(path=str(source.path), error=f"{source.path}: {why}")
