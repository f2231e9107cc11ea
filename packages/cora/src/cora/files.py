"""JSON files of a known shape: what commands hand to each other. Reading checks every field."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cora.errors import BadInput

T = TypeVar("T")


def read(path: Path, kind: type[T], advice: str) -> T:
    """Return a file's content as a record; raise BadInput with the field that is wrong, and the advice."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}; {advice}") from error


def require_directory(path: Path) -> None:
    """Raise BadInput if a file cannot be written because its directory is missing."""
    if not path.parent.is_dir():
        raise BadInput(f"{path}: there is no directory {path.parent}")


def write(path: Path, content: Any) -> None:
    """Write a record as JSON, or a string as it is; the file is replaced at once, so that readers see no half of it."""
    scratch = path.with_name(f".{path.name}.part")
    try:
        scratch.write_bytes(content.encode() if isinstance(content, str) else msgspec.json.encode(content) + b"\n")
        scratch.replace(path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
