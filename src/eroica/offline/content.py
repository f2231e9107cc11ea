"""What a file is, from its first bytes."""

from __future__ import annotations

import re
import stat
import zlib
from pathlib import Path
from typing import Literal

from eroica.errors import InputError
from eroica.trace.dump import is_dump

Kind = Literal["trace", "dump", "other"]

_HEAD_BYTES = 65_536
_TRACE_NAME = re.compile(r"\.pt\.trace(\.json)?(\.gz)?$", re.IGNORECASE)
_TRACE_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"displayTimeUnit"')
_EVENT_LIST = re.compile(
    rb"^\[\s*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*?\"ph\"\s*:"
)  # in the first event, not in its args
_CANDIDATE = re.compile(r"(\.json|\.trace|\.gz|\.pkl|\.pickle|^[^.]+)$|dump|nccl_trace", re.IGNORECASE)


def may_be_ours(name: str) -> bool:
    """Whether a file of this name is worth looking into; pictures, logs and checkpoints in a folder are not."""
    return _CANDIDATE.search(name) is not None


def kind_of(path: Path) -> Kind:
    """What the file is.

    A file that is called `.pt.trace.json` is a trace whatever it holds: an empty or damaged one is to be named, not
    passed over.

    Raises:
        InputError: It cannot be read, or is no regular file.
    """
    head = read_head(path)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if any(key in text for key in _TRACE_KEYS) and text[:1] == b"{":
        return "trace"
    if _EVENT_LIST.match(text):
        return "trace"
    if is_dump(head):
        return "dump"
    return "trace" if _TRACE_NAME.search(path.name) else "other"


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
