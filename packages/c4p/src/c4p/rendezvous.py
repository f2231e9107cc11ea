"""How the members of a group find each other: over torch's store, or a shared folder."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Protocol

from c4p.errors import BadRequest, GroupBroken

ADDRESS = "address"
#: Longest pause between two looks at the store, seconds: 1,000 waiting members ask it 8,000 times a second at most.
LONGEST_PAUSE_S = 0.25
_FAILED = "c4p/failed"


class Store(Protocol):
    """The part of `torch.distributed.Store` that a group needs."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Return the value of a key that is there."""

    def check(self, keys: list[str]) -> bool:
        """Return True if all keys are there."""


class Rendezvous:
    """One member's exchange of values with the others while the group starts.

    Args:
        store: Fresh for each group.
        rank: This member.
        size: Number of members.
        timeout_s: Seconds from now after which `get` gives up.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Return the seconds that are left for the start."""
        return max(0.0, self._until - time.monotonic())

    def publish(self, name: str, value: str) -> None:
        """Write a value of this member."""
        self._store.set(_key(name, self._rank), value)

    def get(self, name: str, rank: int = 0) -> bytes:
        """Wait for a value of another member.

        Raises:
            GroupBroken: It did not come within the group's time-out, or a member has failed. The message names it.
        """
        key, pause_s = _key(name, rank), 0.002
        while not self._store.check([key]):
            if self._store.check([_FAILED]):
                raise GroupBroken(self._store.get(_FAILED).decode())
            if not self.left_s:
                raise GroupBroken(self._late(name, rank))
            time.sleep(min(pause_s, self.left_s + 0.001))
            pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
        return self._store.get(key)

    def fail(self, error: BaseException) -> None:
        """Tell the members that still wait why this one cannot start."""
        with contextlib.suppress(Exception):  # the store may be the reason
            if not self._store.check([_FAILED]):
                self._store.set(_FAILED, f"rank {self._rank} could not start: {error}")

    def _late(self, name: str, rank: int) -> str:
        absent = [one for one in range(self._size) if not self._store.check([_key(ADDRESS, one)])]
        if absent:
            who = ", ".join(f"rank {one}" for one in absent[:8]) + (", ..." if len(absent) > 8 else "")
            return f"{who} of {self._size} members did not start within {self._timeout_s:g} s"
        return f"rank {rank} did not give its {name} within {self._timeout_s:g} s"


def _key(name: str, rank: int) -> str:
    return f"c4p/{rank}" if name == ADDRESS else f"c4p/{name}/{rank}"


class Folder:
    """A store in a folder that all members share. It holds the group's token, so it must be the user's own.

    Args:
        path: The folder; made where it is missing. Each group needs a fresh one.

    Raises:
        BadRequest: Another user could have put files into it, or could do so.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = self._path.stat()
        if facts.st_uid != os.getuid() or facts.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
            raise BadRequest(
                f"{self._path} belongs to user {facts.st_uid}, or others may write into it (mode "
                f"{stat.S_IMODE(facts.st_mode):o}), so another user could put a token there: give a folder of your own"
            )

    def set(self, key: str, value: str) -> None:
        """Write a value, whole or not at all.

        Raises:
            BadRequest: It is there already: another group met in this folder.
        """
        if self._file(key).exists():
            raise BadRequest(f"{self._path} has {key!r} of an earlier group: give each start a folder of its own")
        with tempfile.NamedTemporaryFile("w", dir=self._path, delete=False) as file:
            file.write(value)
        Path(file.name).replace(self._file(key))

    def get(self, key: str) -> bytes:
        """Return the value of a key that is there."""
        return self._file(key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        """Return True if all keys are there."""
        return all(os.path.lexists(self._file(key)) for key in keys)

    def _file(self, key: str) -> Path:
        return self._path / ("key-" + key.replace("/", "-"))
