"""What a file is, from its first bytes."""

from __future__ import annotations

import re
import stat
import zlib
from pathlib import Path
from typing import Literal

from eroica.errors import InputError
from eroica.trace.dump import is_dump
from eroica.trace.foreign import what_by_keys, what_else
from eroica.trace.nsight import MAGIC, is_nsight, processes_of

Kind = Literal["trace", "dump", "other"]

_HEAD_BYTES = 65_536
_TRACE_NAME = re.compile(r"\.pt\.trace(\.json)?(\.gz)?$", re.IGNORECASE)
_TRACE_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"displayTimeUnit"')
_EVENT_LIST = re.compile(
    rb"^\[\s*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*?\"ph\"\s*:"
)  # in the first event, not in its args
#: Any pickle, also one that begins by importing a name.
_PICKLE = re.compile(rb"\x80|[ci][\w.]+\n[\w.]+\n")
_DUMP_NAME = re.compile(r"dump|nccl_trace", re.IGNORECASE)
#: Keys near the beginning of a file, of whatever depth: enough to say which tool's file a refused one may be.
_OUTER_KEY = re.compile(rb'"([A-Za-z_-]{2,40})"\s*:')
_CANDIDATE = re.compile(r"(\.json|\.trace|\.gz|\.pkl|\.pickle|\.sqlite|^[^.]+)$|dump|nccl_trace", re.IGNORECASE)


def may_be_ours(name: str) -> bool:
    """Whether a file of this name is worth looking into; pictures, logs and checkpoints in a folder are not."""
    return _CANDIDATE.search(name) is not None


def kind_of(path: Path) -> Kind:
    """What a file is; see `look_at`."""
    return look_at(path)[0]


def look_at(path: Path) -> tuple[Kind, str]:
    """What a file is, and of others which tool's, as a clause behind its name ("" where nobody knows).

    A file that is called `.pt.trace.json` is a trace whatever it holds: an empty or damaged one is to be named, not
    passed over.

    Raises:
        InputError: It cannot be read, or is no regular file.
    """
    head = read_head(path)
    if head.startswith(MAGIC):
        return ("trace", "") if is_nsight(path) else ("other", "is an SQLite database, but no export of Nsight Systems")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if any(key in text for key in _TRACE_KEYS) and text[:1] == b"{":
        return "trace", ""
    if _EVENT_LIST.match(text):
        return "trace", ""
    if is_dump(head) or (_PICKLE.match(head) and _DUMP_NAME.search(path.name)):
        return "dump", ""
    if _TRACE_NAME.search(path.name):
        return "trace", ""
    return "other", what_else(head, path.name) or what_by_keys([key.decode() for key in _OUTER_KEY.findall(text)])


def read_head(path: Path) -> bytes:
    """The first bytes of a file, unpacked where it is packed; never waits for a pipe or device.

    Raises:
        InputError: It cannot be read, or is no regular file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path} is no regular file")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if head[:2] != b"\x1f\x8b":
        return head
    try:
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def processes_in(path: Path) -> tuple[int, ...]:
    """Processes that a file holds apart from each other, in the order of their devices; none where it holds one."""
    try:
        with path.open("rb") as file:
            is_database = file.read(len(MAGIC)) == MAGIC
        return processes_of(path) if is_database else ()
    except (OSError, InputError):
        return ()
