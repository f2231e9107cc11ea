"""At any time one `eroica run` of a host has a job's name and its run directory for itself.

A second one with a collector of its own would take the first one's address away and mix both jobs' workers. So the one
that starts the collector holds a lock of each as long as it runs, in the runtime directory of this user: files on this
host's own disk or memory, because locks are not dependable on shared file systems. Other hosts of the same job have
locks of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path

from eroica.wire.places import Places, file_name, private_directory, private_file, read_private


class Claim:
    """The locks of one `eroica run`.

    Args:
        where: The places of its job.
    """

    def __init__(self, where: Places) -> None:
        self._where = where
        self._held: list[tuple[Path, int]] = []
        self._refused = False

    def take(self) -> str:
        """Take both locks; why that cannot be, in one clause, "" if it could.

        Raises:
            OSError: Nothing can be locked here; the job cannot be watched either.
        """
        root = private_directory(self._where.runtime).parent
        run = hashlib.sha256(os.fsencode(self._where.run.resolve())).hexdigest()[:16]
        wanted = (
            (f"{self._where.runtime.name}.claim", f"the job {self._where.job}"),
            (f"run-{run}@{file_name(self._where.host)}.claim", f"the report in {self._where.run}"),
        )
        for name, what in wanted:
            handle = _lock(root / name)
            if handle is None:
                self.release()
                self._refused = True
                return f"{what} is that of another `eroica run`, process {_holder(root / name)}, which still runs"
            self._held.append((root / name, handle))
        return ""

    def release(self) -> None:
        """Give the locks back. Idempotent."""
        while self._held:
            path, handle = self._held.pop()
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(handle)
        if self._refused:
            with contextlib.suppress(OSError):  # the other one's has something in it
                self._where.runtime.rmdir()


def _lock(path: Path) -> int | None:
    """A file of ours, locked, with our process id in it; None if another process has it."""
    while True:
        handle = private_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if os.fstat(handle).st_nlink:
            os.pwrite(handle, f"{os.getpid():<10}".encode(), 0)
            return handle
        os.close(handle)  # who had it has just given it back and removed the file


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        return read_private(path).decode("ascii", "replace").strip() or "unknown"
    return "unknown"
