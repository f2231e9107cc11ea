"""The job's folder and token: they belong to the user, or are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trainmover.errors import UsageError

_LONGEST = 1000


def check_folder(folder: Path) -> None:
    """Check that a job's folder belongs to the user.

    Raises:
        OSError: There is no such folder.
        UsageError: Another user could have put files into it.
    """
    link, facts = folder.lstat(), folder.stat()
    advice = "give --folder a folder of your own"
    if not stat.S_ISDIR(facts.st_mode):
        raise UsageError(f"{folder} is no folder: {advice}")
    for owner in (link.st_uid, facts.st_uid):
        if owner != os.getuid():
            raise UsageError(f"{folder} belongs to user {owner}, who could have put files there: {advice}")
    if facts.st_mode & stat.S_IWOTH:
        raise UsageError(f"all users may write into {folder}: {advice}, or chmod o-w it")


def write_token(file: Path, token: str) -> None:
    """Write the token into a new file that only its user can read.

    Raises:
        OSError: The former file cannot be removed, or another process has put one there since.
    """
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as made:
        made.write(token)


def read_token(file: Path) -> str:
    """Return the token of a job of the user's.

    Raises:
        OSError: There is none.
        UsageError: The file is not the user's own, or others may read it.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle) as there:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise UsageError(
                f"{file} belongs to user {facts.st_uid} and has mode {stat.S_IMODE(facts.st_mode):o}, so others may "
                "know what it holds, and it is not used: remove it, or give another --folder"
            )
        return there.read(_LONGEST).strip()
