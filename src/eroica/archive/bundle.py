"""Patterns of one window as they came, in one file.

A collector appends to it and decodes nothing; whoever reads it asks for one worker at a time. The file begins with
`_MAGIC`; a frame for each worker follows, with its length and a checksum. One that is cut off, as where a collector was
killed while it wrote, ends the file; one that is damaged costs its worker.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zlib
from pathlib import Path

from eroica.errors import InputError
from eroica.wire.places import private_directory, private_file

_MAGIC = b"eroica patterns 1\n"
#: Global rank, and bytes of what follows; then the CRC-32 of all that and what follows.
_HEAD, _SUM = struct.Struct("<II"), struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _SUM.size
_MOST_FRAME_BYTES, _MOST_RANK = 4_000_000, 10_000_000
_READ_BYTES = 1 << 20


class Bundle:
    """The patterns in one file; of a worker that is in it twice, the later one.

    Args:
        path: The file.
        append: More will be added; it is made if it is not there, and what was cut off at its end goes.

    Raises:
        OSError: It cannot be opened or read.
        InputError: It is no file of patterns.
    """

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self._path = path
        self._frames: dict[int, tuple[int, int]] = {}  # place and size of a worker's pattern in the file
        if append:
            private_directory(path.parent)
            self._file = private_file(path, os.O_RDWR | os.O_CREAT)
        else:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._end = self._scan()
            if append:
                os.ftruncate(self._file, self._end)
        except (OSError, InputError):
            os.close(self._file)
            raise

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read and write no more."""
        os.close(self._file)

    @property
    def ranks(self) -> list[int]:
        """Global ranks of the workers in it, in order."""
        return sorted(self._frames)

    def stamp(self, rank: int) -> tuple[int, int]:
        """Place and size of a worker's pattern in the file: others if it was added once more."""
        return self._frames[rank]

    def read(self, rank: int) -> bytes:
        """What came of a worker.

        Raises:
            OSError: The file cannot be read.
            InputError: It is damaged.
        """
        start, size = self._frames[rank]
        data = os.pread(self._file, _SUM.size + size, start - _SUM.size)
        content = data[_SUM.size :]
        if len(content) != size or data[: _SUM.size] != _sum(rank, content):
            raise InputError("it is damaged in the file")
        return content

    def add(self, rank: int, content: bytes) -> None:
        """Append what came of a worker; it is there for another process when this returns.

        Raises:
            OSError: It could not be written; the file is as it was.
        """
        begin = b"" if self._end else _MAGIC
        frame = begin + _HEAD.pack(rank, len(content)) + _sum(rank, content) + content
        if os.pwrite(self._file, frame, self._end) < len(frame):
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise OSError(f"no room for {len(frame)} bytes in {self._path}")
        self._end += len(frame)
        self._frames[rank] = self._end - len(content), len(content)

    # ------------------------------------------------------------------ reading

    def _scan(self) -> int:
        """Note where each frame lies; return where the last whole one ends."""
        found = os.fstat(self._file)
        size = found.st_size
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{self._path} is no regular file")
        begin = os.pread(self._file, len(_MAGIC), 0)
        if size < len(_MAGIC) and _MAGIC.startswith(begin):
            return 0
        if begin != _MAGIC:
            raise InputError(f"{self._path} is no file of patterns")
        at, block, block_at = len(_MAGIC), b"", 0
        while at + _HEAD_BYTES <= size:
            if at + _HEAD_BYTES > block_at + len(block):
                block, block_at = os.pread(self._file, _READ_BYTES, at), at
                if len(block) < _HEAD_BYTES:
                    break
            rank, length = _HEAD.unpack_from(block, at - block_at)
            end = at + _HEAD_BYTES + length
            if length > _MOST_FRAME_BYTES or rank > _MOST_RANK or end > size:
                break
            self._frames[rank] = at + _HEAD_BYTES, length
            at = end
        return at


def _sum(rank: int, data: bytes) -> bytes:
    return _SUM.pack(zlib.crc32(data, zlib.crc32(_HEAD.pack(rank, len(data)))))
