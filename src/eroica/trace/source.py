"""Read the text of a trace file in bounded pieces, plain or gzip; refuse files of other tools, saying what they are."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any

from zlib_ng import zlib_ng

from eroica.errors import InputError

_TRACE = "name the .json that torch.profiler exported (export_chrome_trace)"
_PAGE = "is a web page, perhaps a login page saved in place of the file; download it again"
_UTF_16 = "is encoded in UTF-16; convert it to UTF-8 first (`iconv -f UTF-16 -t UTF-8`)"


#: First bytes of containers and binary formats, and what such a file is.
_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"\x28\xb5\x2f\xfd", "is packed with zstd; unpack it first (`zstd -d`)"),
    (b"PK\x03\x04", "is a zip archive; unpack it first"),
    (b"BZh", "is packed with bzip2; unpack it first (`bunzip2`)"),
    (b"\xfd7zXZ", "is packed with xz; unpack it first (`unxz`)"),
    *((begin, _UTF_16) for begin in (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"\x00{", b"[\x00", b"\x00[")),
    (b"\x80", "is a Python pickle and no trace; a Flight Recorder dump is recognized by its name (`..._dump_0`)"),
    (b"version https://git-lfs", "is a Git LFS pointer and not the file itself; fetch it (`git lfs pull`)"),
    *((begin, _PAGE) for begin in (b"<!DOCTYPE", b"<html")),
    (b"<", f"is XML or a picture; {_TRACE}"),
    (b"\x89PNG", f"is a picture (PNG); {_TRACE}"),
)
#: Keys of the outermost object -> what the file is. Sources: VizTracer's and speedscope's file formats, torch's
#: `execution_trace_observer.cpp`, `rocprofv3 --output-format json`, V8's `.cpuprofile`, torch's memory snapshots.
_KEYS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"entries", "pg_status"}), "is a Flight Recorder dump and no trace; name the folder of the dumps"),
    (frozenset({"entries", "pg_config"}), "is a Flight Recorder dump and no trace; name the folder of the dumps"),
    (frozenset({"viztracer_metadata"}), f"is a trace of VizTracer, not of PyTorch's profiler; {_TRACE}"),
    (frozenset({"shared", "profiles"}), f"is a speedscope profile; {_TRACE}"),
    (frozenset({"schema", "nodes"}), f"is a PyTorch Execution Trace, which holds no times of kernels; {_TRACE}"),
    (frozenset({"rocprofiler-sdk-tool"}), f"is rocprofv3's own JSON; {_TRACE}"),
    (frozenset({"segments", "device_traces"}), f"is a snapshot of the device's memory; {_TRACE}"),
    (frozenset({"schema_version", "verdict", "coverage"}), "is a verdict of Eroica; show it with `eroica report`"),
)
_SPEEDSCOPE = b"speedscope.app/file-format-schema"
_XPLANE = re.compile(rb"/(?:host:CPU|host:metadata|device:(?:TPU|GPU|CUSTOM):\d)")
_XSPACE = "is an XPlane (JAX, TensorFlow, torch_xla); convert it to trace.json.gz first (xprof's trace viewer)"
_SUFFIXES = {
    ".nsys-rep": "is a report of Nsight Systems; export it first (`nsys export --type sqlite`)",
    ".qdrep": "is a report of Nsight Systems; export it first (`nsys export --type sqlite`)",
    ".ncu-rep": f"is a report of Nsight Compute, which measures single kernels; {_TRACE}",
    ".pftrace": f"is a trace in Perfetto's binary format; {_TRACE}",
    ".perfetto-trace": f"is a trace in Perfetto's binary format; {_TRACE}",
    ".prof": f"is a profile of another tool (cProfile, pprof); {_TRACE}",
}
#: zlib's interface at twice its speed; the type stubs lack `copy` and `error`.
_ng: Any = zlib_ng
_READ_BYTES = 1 << 18
_MOST_SWELLING = 500
_SWELLING_BYTES = 200_000_000
_GZIP = b"\x1f\x8b"


def what_else(head: bytes, name: str = "") -> str:
    """What a file is that is no trace, as a clause behind its name: "is a zip archive; unpack it first".

    Args:
        head: Its first bytes, unpacked if it was packed.
        name: Its name, whose ending counts where the bytes tell nothing.

    Returns:
        The clause, "" where nobody knows.
    """
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if head[:1] == b"\n" and _XPLANE.search(head[:65_536]):
        return _XSPACE
    if head[:2] == b"\x1f\x8b":
        return "is packed with gzip twice; unpack it once (`gunzip`)"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for begin, what in _BEGINNINGS:
        if head.startswith(begin) or (begin[:1] == b"<" and text.startswith(begin)):
            return what
    if _SPEEDSCOPE in head[:65_536] and text[:1] == b"{":
        return f"is a speedscope profile; {_TRACE}"
    return ""


def what_by_keys(keys: Collection[str]) -> str:
    """The same, by what stands in the outermost object of its JSON."""
    return next((what for wanted, what in _KEYS if wanted <= set(keys)), "")


def writer_of(categories: Collection[str], keys: Collection[str]) -> str:
    """Return the tool that wrote a Chrome trace without any event of PyTorch's, "" if unknown."""
    return "VizTracer" if "viztracer_metadata" in keys or "FEE" in categories else ""


class TraceSource:
    """A regular file, unpacked on the way.

    Attributes:
        path: The file.
        unpacked: Bytes handed out.
        ended: Nothing more will come.
        problem: Why it ended early, "" if it did not.
        limited: It ended because of the limit.
    """

    def __init__(self, path: Path, limit: int) -> None:
        """Open it.

        Args:
            path: A regular file; anything else (a pipe would block) is refused.
            limit: Most unpacked bytes.

        Raises:
            InputError: It cannot be opened, or begins like something that is no trace.
        """
        self.path = path
        self.unpacked = 0
        self.ended = False
        self.problem = ""
        self.limited = False
        self._limit = limit
        self._consumed = 0
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
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

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
