"""Patterns of one window as they came, in one file: parts that they share once, each worker's own behind them.

A collector appends to it and decodes nothing; whoever reads it asks for one worker at a time. The file begins with
`_MAGIC`; frames follow, each with its length and a checksum. One that is cut off, as where a collector was killed while
it wrote, ends the file; one that is damaged costs its worker, and damaged parts those workers that need them.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from eroica.archive.forget import BUNDLE_FILE
from eroica.errors import InputError
from eroica.wire.parcels import Parcel, pack_numbers, pack_parts, unpack_numbers, unpack_parts
from eroica.wire.places import private_directory, private_file

__all__ = ["BUNDLE_FILE", "Bundle", "Content"]

Content = Parcel | bytes
"""A parcel, or a whole pattern as `eroica.wire.codec.encode_record` makes it."""
_MAGIC = b"eroica patterns 1\n"
#: Kind, global rank (of parts: how many), and bytes of what follows; then the CRC-32 of all that and what follows.
_HEAD, _SUM = struct.Struct("<BII"), struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _SUM.size
_PARTS, _PARCEL, _WHOLE = range(3)
_MOST_FRAME_BYTES, _MOST_RANK = 4_000_000, 10_000_000
#: Parts of one file, and bytes of them: what a collector's book may hold, and another one after it.
_MOST_PARTS, _MOST_PARTS_BYTES = 1_000_000, 256_000_000
#: Parts in one frame; unpacked they must not be more than a frame may hold.
_TOGETHER = 200
_READ_BYTES = 1 << 20


class _Sent(msgspec.Struct, frozen=True, array_like=True):
    """A parcel in a frame: `numbers` are places of its `count` parts among all parts of the file."""

    count: int
    numbers: bytes
    own: bytes


class _Frame(NamedTuple):
    kind: int
    rank: int
    start: int
    size: int


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
        self._parts: list[bytes | None] = []
        self._places: dict[bytes, int] = {}
        self._frames: dict[int, _Frame] = {}
        if append:
            private_directory(path.parent)
            self._file = private_file(path, os.O_RDWR | os.O_CREAT)
        else:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._end = self._scan()
            if append:
                os.ftruncate(self._file, self._end)
                self._places = {part: at for at, part in enumerate(self._parts) if part is not None}
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
        frame = self._frames[rank]
        return frame.start, frame.size

    def read(self, rank: int) -> Content:
        """What came of a worker.

        Raises:
            OSError: The file cannot be read.
            InputError: It is damaged, or a part of it is.
        """
        frame = self._frames[rank]
        data = self._content(frame)
        if frame.kind == _WHOLE:
            return data
        try:
            sent = msgspec.msgpack.decode(data, type=_Sent)
            numbers = unpack_numbers(sent.numbers, sent.count)
        except (ValueError, zlib.error) as error:
            raise InputError(str(error)) from error
        if not all(0 <= number < len(self._parts) for number in numbers):
            raise InputError("its parts are not there")
        parts = tuple(part for part in map(self._parts.__getitem__, numbers) if part is not None)
        if len(parts) < len(numbers):
            raise InputError(f"{len(numbers) - len(parts)} of its parts are damaged")
        return Parcel(parts, sent.own)

    def add(self, rank: int, content: Content) -> None:
        """Append what came of a worker; it is there for another process when this returns.

        Raises:
            OSError: It could not be written; the file is as it was.
        """
        new: dict[bytes, int] = {}
        frames = b"" if self._end else _MAGIC
        if isinstance(content, bytes):
            kind, data = _WHOLE, content
        else:
            new = {part: 0 for part in content.parts if part not in self._places}
            new = dict(zip(new, range(len(self._parts), len(self._parts) + len(new)), strict=True))
            for some in _some(list(new)):
                frames += _framed(_PARTS, len(some), pack_parts(some, 1))
            places = [self._places[part] if part in self._places else new[part] for part in content.parts]
            kind, data = _PARCEL, msgspec.msgpack.encode(_Sent(len(places), pack_numbers(places), content.own))
        frames += _framed(kind, rank, data)
        if os.pwrite(self._file, frames, self._end) < len(frames):
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise OSError(f"no room for {len(frames)} bytes in {self._path}")
        self._end += len(frames)
        self._frames[rank] = _Frame(kind, rank, self._end - len(data), len(data))
        self._parts += new
        self._places |= new

    # ------------------------------------------------------------------ reading

    def _scan(self) -> int:
        """Note where each frame lies, and read the parts; return where the last whole frame ends."""
        found = os.fstat(self._file)
        size = found.st_size
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{self._path} is no regular file")
        begin = self._bytes(0, len(_MAGIC))
        if size < len(_MAGIC) and _MAGIC.startswith(begin):
            return 0
        if begin != _MAGIC:
            raise InputError(f"{self._path} is no file of patterns")
        at, block, block_at, bytes_of_parts = len(_MAGIC), b"", 0, 0
        while at + _HEAD_BYTES <= size:
            if at + _HEAD_BYTES > block_at + len(block):
                block, block_at = self._bytes(at, _READ_BYTES), at
                if len(block) < _HEAD_BYTES:
                    break
            kind, rank, length = _HEAD.unpack_from(block, at - block_at)
            frame = _Frame(kind, rank, at + _HEAD_BYTES, length)
            end = frame.start + length
            most = _TOGETHER if kind == _PARTS else _MOST_RANK
            if kind > _WHOLE or length > _MOST_FRAME_BYTES or rank > most or end > size:
                break
            if kind == _PARTS:
                bytes_of_parts += self._take_parts(frame)
                if len(self._parts) > _MOST_PARTS or bytes_of_parts > _MOST_PARTS_BYTES:
                    raise InputError(f"{self._path} holds too many parts")
            else:
                self._frames[rank] = frame
            at = end
        return at

    def _take_parts(self, frame: _Frame) -> int:
        """Read parts; damaged ones take as many places."""
        found: tuple[bytes | None, ...] = (None,) * frame.rank
        with contextlib.suppress(InputError, ValueError, zlib.error):
            parts = unpack_parts(self._content(frame))
            if len(parts) == frame.rank:
                found = parts
        self._parts += found
        return sum(len(part) for part in found if part is not None)

    def _content(self, frame: _Frame) -> bytes:
        data = self._bytes(frame.start - _SUM.size, _SUM.size + frame.size)
        if len(data) != _SUM.size + frame.size or data[: _SUM.size] != _sum(frame.kind, frame.rank, data[_SUM.size :]):
            raise InputError("it is damaged in the file")
        return data[_SUM.size :]

    def _bytes(self, start: int, size: int) -> bytes:
        return os.pread(self._file, size, start)


def _some(parts: list[bytes]) -> Iterator[list[bytes]]:
    """Yield parts by frames: few enough, and not too long together."""
    some: list[bytes] = []
    for part in parts:
        if some and (len(some) >= _TOGETHER or sum(map(len, some)) + len(part) > _MOST_FRAME_BYTES // 2):
            yield some
            some = []
        some.append(part)
    if some:
        yield some


def _framed(kind: int, rank: int, data: bytes) -> bytes:
    return _HEAD.pack(kind, rank, len(data)) + _sum(kind, rank, data) + data


def _sum(kind: int, rank: int, data: bytes) -> bytes:
    return _SUM.pack(zlib.crc32(data, zlib.crc32(_HEAD.pack(kind, rank, len(data)))))
