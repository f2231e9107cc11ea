"""How members of a group find each other: any store with `set` and `get`, torch's among them."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Protocol

from c4p.errors import BadRequest, GroupBroken


class Store(Protocol):
    """What a group needs of a store; `torch.distributed.Store` has it."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Value of a key; waits until there is one."""


class Folder:
    """A folder that all members see is the store. It holds the group's token, so it must be the user's own.

    Args:
        path: The folder; made where it is missing. Each group needs a fresh one.
        timeout_s: How long `get` waits.

    Raises:
        BadRequest: Another user could have put files into it, or could do so.
    """

    def __init__(self, path: str | Path, timeout_s: float = 60.0) -> None:
        self._path = Path(path)
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = self._path.stat()
        if facts.st_uid != os.getuid() or facts.st_mode & stat.S_IWOTH:
            raise BadRequest(
                f"{self._path} belongs to user {facts.st_uid}, or everybody may write into it, so another user could "
                "put a token there: give a folder of your own"
            )
        self._timeout_s = timeout_s

    def set(self, key: str, value: str) -> None:
        """Write a value, whole or not at all.

        Raises:
            BadRequest: It is there already: another group met in this folder.
        """
        if self._file(key).exists():
            message = (
                f"{self._path} has {key!r} of an earlier group: give each group, and each start, a folder of its own"
            )
            raise BadRequest(message)
        with tempfile.NamedTemporaryFile("w", dir=self._path, delete=False) as file:
            file.write(value)
        Path(file.name).replace(self._file(key))

    def get(self, key: str) -> bytes:
        """Value of a key; waits until there is one.

        Raises:
            GroupBroken: Nobody wrote it in time.
        """
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return _own_bytes(self._file(key))
            except FileNotFoundError:
                if time.monotonic() > until:
                    message = f"nobody wrote {key!r} to {self._path} within {self._timeout_s:g} s"
                    raise GroupBroken(f"{message}: did all members start, with the same folder?") from None
                time.sleep(0.005)

    def _file(self, key: str) -> Path:
        return self._path / ("key-" + key.replace("/", "-"))


def _own_bytes(file: Path) -> bytes:
    """Return the contents of a file of the user's.

    Raises:
        BadRequest: Another user has put it there.
    """
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadRequest(f"{file} is a link, and is not read: give the group another folder") from None
        raise
    with os.fdopen(handle, "rb") as there:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid():
            raise BadRequest(f"{file} was put there by user {facts.st_uid}, and is not read: give another folder")
        return there.read()
