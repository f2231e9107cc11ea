"""How members of a group find each other: any store with `set` and `get`, torch's among them."""

from __future__ import annotations

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
    """A folder that all members see is the store.

    Args:
        path: The folder; made where it is missing. Each group needs a fresh one.
        timeout_s: How long `get` waits.
    """

    def __init__(self, path: str | Path, timeout_s: float = 60.0) -> None:
        self._path = Path(path)
        self._path.mkdir(parents=True, exist_ok=True)
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
                return self._file(key).read_bytes()
            except FileNotFoundError:
                if time.monotonic() > until:
                    message = f"nobody wrote {key!r} to {self._path} within {self._timeout_s:g} s"
                    raise GroupBroken(f"{message}: did all members start, with the same folder?") from None
                time.sleep(0.005)

    def _file(self, key: str) -> Path:
        return self._path / ("key-" + key.replace("/", "-"))
