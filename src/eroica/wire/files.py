"""Files that appear whole: written beside, then renamed, so a reader never sees half of one."""

from __future__ import annotations

import os
import stat
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
        draft.unlink(missing_ok=True)  # of an earlier process with this id
        write_private(draft, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        if on_disk:
            _settle(draft)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def write_secret(path: Path, data: bytes) -> None:
    """Write a token's file, on disk before this returns.

    Raises:
        OSError: As `write_whole`, or another user has put a file, or somebody a link, where it belongs.
    """
    facts = path.lstat() if path.exists() or path.is_symlink() else None
    if facts is not None and (facts.st_uid != os.getuid() or not stat.S_ISREG(facts.st_mode)):
        raise PermissionError(
            f"{path} is a link or belongs to user {facts.st_uid}, who may have put it there: remove it, or choose "
            "another directory"
        )
    write_whole(path, data, on_disk=True)


def _settle(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
