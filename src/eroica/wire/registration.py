"""The first page of a beat file: who a worker is. Standard library only: the worker imports this."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

MAGIC = b"EROICA01"
PAGE_BYTES = 4096
_HEAD = struct.Struct("=8sI")


def page_of(identity: dict[str, Any]) -> bytes:
    """The page: magic, length, JSON, zeros.

    Raises:
        ValueError: The identity does not fit.
    """
    text = json.dumps(identity).encode()
    if len(text) > PAGE_BYTES - _HEAD.size:
        raise ValueError(f"identity of {len(text)} bytes does not fit into one page; shorten it")
    return (_HEAD.pack(MAGIC, len(text)) + text).ljust(PAGE_BYTES, b"\0")


def identity_on(page: bytes, path: Path) -> dict[str, Any]:
    """What stands on a page.

    Args:
        page: The first bytes of the file.
        path: The file, for the message.

    Raises:
        ValueError: Nothing that could be an identity.
    """
    magic, length = _HEAD.unpack_from(page, 0) if len(page) == PAGE_BYTES else (b"", 0)
    if magic != MAGIC or length > PAGE_BYTES - _HEAD.size:
        raise ValueError(f"{path} is not a beat file of this version")
    try:
        identity = json.loads(page[_HEAD.size : _HEAD.size + length])
    except (ValueError, RecursionError):
        raise ValueError(f"{path} has an unreadable identity page") from None
    if not isinstance(identity, dict):
        raise ValueError(f"{path} has an identity that is no object")
    return identity
