"""The text of a trace file in bounded pieces: plain or gzip, told apart by their first bytes; never held whole."""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from zlib_ng import zlib_ng

from eroica.errors import InputError
from eroica.trace.foreign import what_else

#: zlib's interface at twice its speed; the type stubs lack `copy` and `error`.
_ng: Any = zlib_ng
_READ_BYTES = 1 << 18
_MOST_SWELLING = 500
_SWELLING_BYTES = 200_000_000
_REPORT_S = 0.25
_GZIP = b"\x1f\x8b"


class TraceSource:
    """A regular file, unpacked on the way.

    Attributes:
        path: The file.
        unpacked: Bytes handed out.
        ended: Nothing more will come.
        problem: Why it ended early, "" if it did not.
        limited: It ended because of the limit.
    """

    def __init__(self, path: Path, limit: int, progress: Callable[[int], None] | None = None) -> None:
        """Open it.

        Args:
            path: A regular file; anything else (a pipe would block) is refused.
            limit: Most unpacked bytes.
            progress: Called with the bytes of the file consumed since the last call, four times a second at most.

        Raises:
            InputError: It cannot be opened, or begins like something that is no trace.
        """
        self.path = path
        self.unpacked = 0
        self.ended = False
        self.problem = ""
        self.limited = False
        self._limit = limit
        self._progress = progress
        self._consumed = self._reported = 0
        self._reported_at = time.monotonic()
        self._file = _open(path)
        self._waiting = os.read(self._file, _READ_BYTES)
        self._consumed = len(self._waiting)
        self._unpacker = _ng.decompressobj(16 + zlib.MAX_WBITS) if self._waiting.startswith(_GZIP) else None
        what = "" if self._unpacker is not None else what_else(self._waiting, path.name)
        if what:
            self.close()
            raise InputError(f"{path} {what}")

    def __enter__(self) -> TraceSource:
        """The source itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back; the last progress is told."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._report(0.0)

    def read(self, wanted: int) -> bytes:
        """About `wanted` bytes of text, less only at the end.

        Raises:
            InputError: The file cannot be read, is damaged before its first byte of text, or unpacks to absurdly much.
        """
        parts: list[bytes] = []
        missing = wanted
        while missing > 0 and not self.ended:
            part = self._next(missing)
            parts.append(part)
            missing -= len(part)
        self._report(_REPORT_S)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _next(self, most: int) -> bytes:
        most = min(most, self._limit - self.unpacked)
        if most <= 0:
            self.limited = self.ended = True
            return b""
        part = self._plain(most) if self._unpacker is None else self._unpack(self._unpacker, most)
        self.unpacked += len(part)
        if self.unpacked > max(_SWELLING_BYTES, _MOST_SWELLING * self._consumed):
            raise InputError(
                f"{self.path} unpacks to more than {_MOST_SWELLING} times its size, as no trace does; capture it again"
            )
        return part

    def _plain(self, most: int) -> bytes:
        part = self._waiting or self._from_file(most)
        self._waiting = part[most:]
        self.ended = not part
        return part[:most]

    def _unpack(self, unpacker: zlib._Decompress, most: int) -> bytes:
        packed = self._waiting or self._from_file()
        if not packed:
            self._stop("its compressed data is cut short", bool(self.unpacked))
            return b""
        before = unpacker.copy()
        try:
            part = unpacker.decompress(packed, most)
        except _ng.error as error:
            part = _up_to_damage(before, packed, most)
            self._stop(f"its compressed data is damaged ({str(error).split(': ')[-1]})", bool(self.unpacked or part))
            return part
        self._waiting = unpacker.unconsumed_tail
        if unpacker.eof:
            self._next_member(unpacker.unused_data)
        return part

    def _next_member(self, rest: bytes) -> None:
        """Several gzip members in one file count as one; zeros behind them as padding."""
        rest = (rest if len(rest) > 1 else rest + self._from_file()).lstrip(b"\0")
        if rest.startswith(_GZIP):
            self._waiting = rest
            self._unpacker = _ng.decompressobj(16 + zlib.MAX_WBITS)
        else:
            self.ended = True
            self.problem = "something that is not compressed follows its compressed data" if rest else ""

    def _stop(self, problem: str, useful: bool) -> None:
        if not useful:
            raise InputError(f"{self.path} is a damaged gzip file: {problem}; copy or capture it again")
        self.ended = True
        self.problem = problem

    def _from_file(self, most: int = _READ_BYTES) -> bytes:
        try:
            part = os.read(self._file, most)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror or error}") from error
        self._consumed += len(part)
        return part

    def _report(self, pause_s: float) -> None:
        now = time.monotonic()
        if self._progress is not None and now - self._reported_at >= pause_s and self._consumed > self._reported:
            self._progress(self._consumed - self._reported)
            self._reported, self._reported_at = self._consumed, now


def _up_to_damage(unpacker: zlib._Decompress, packed: bytes, most: int) -> bytes:
    """What can be unpacked before the byte that cannot."""
    parts: list[bytes] = []
    step = 4096
    while step and packed and most > 0:
        before = unpacker.copy()
        try:
            parts.append(unpacker.decompress(packed[:step], most))
        except _ng.error:
            unpacker, step = before, step // 64
            continue
        most -= len(parts[-1])
        packed = unpacker.unconsumed_tail + packed[step:]
    return b"".join(parts)


def _open(path: Path) -> int:
    """A descriptor of a regular file; opening never waits for a pipe's other end."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise InputError(f"{path} is no regular file; name a .json or .json.gz")
    return number
