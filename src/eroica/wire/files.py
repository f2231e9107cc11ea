"""Files that appear whole: written beside, then renamed, so a reader never sees half of one."""

from __future__ import annotations

import os
from pathlib import Path

from eroica.wire.places import write_private


def write_whole(path: Path, data: bytes, *, on_disk: bool = False) -> None:
    """Write a file that appears at once, readable by its owner only.

    Args:
        path: The file.
        data: What it holds.
        on_disk: Return only when it would be there after a loss of power.

    Raises:
        OSError: The disk is full or the directory cannot be written; what was there before stays.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_private(draft, data)
        if on_disk:
            _settle(draft)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _settle(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
