"""The limits of the user's process: what we write or open must not be what exceeds them."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eroica.worker.errors_of_users import raised_by_user

_signal: Any = __import__("_signal")
_TOO_LARGE = {_signal.SIGXFSZ}
_FEWEST_FILES = 16  # of Kineto, of a thread's stacks, of the training meanwhile
_LEAST_FILE_BYTES = 64_000_000  # a trace
_LEAST_MEMORY_BYTES = 1_000_000_000  # a window's events, twice
RESIDENT = 1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def spared() -> Iterator[None]:
    """Let a file of ours that may not grow be an error, where the system would end the process for it (SIGXFSZ).

    The kernel sends that signal to the thread that writes. Here it waits until it is taken back.
    """
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:
        yield
        return
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _TOO_LARGE)
    try:
        yield
    finally:
        if not before & _TOO_LARGE:
            while _TOO_LARGE & _signal.sigpending():
                _signal.sigtimedwait(_TOO_LARGE, 0)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def lack_of_files() -> str:
    """Tell in a clause why no file is to be opened beside those of the training; "" where there is room."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
        Path("/proc/self/comm").read_bytes()  # Kineto reads it, and says so aloud where it cannot
    except OSError as error:
        if raised_by_user(error):
            raise
        return f"/proc cannot be read ({error.strerror})"
    if most != resource.RLIM_INFINITY and most - used < _FEWEST_FILES:
        return f"the process may open only {max(0, most - used)} more files"
    return ""


def lack_for_a_window() -> str:
    """Tell in a clause why a window is not to be captured here; "" where there is room."""
    most_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most_bytes != resource.RLIM_INFINITY and most_bytes < _LEAST_FILE_BYTES:
        return f"files of the process may have only {most_bytes} bytes"
    for name, limit, field in (("address space", resource.RLIMIT_AS, 0), ("data", resource.RLIMIT_DATA, 5)):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY and most - memory_bytes(field) < _LEAST_MEMORY_BYTES:
            return f"the limit of the process's {name}, {most} bytes, leaves too little room"
    return lack_of_files()


def memory_bytes(field: int = RESIDENT) -> int:
    """Memory of this process, 0 where that cannot be read.

    Args:
        field: Which column of `/proc/self/statm`.
    """
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[field]) * _PAGE_BYTES
    except (OSError, ValueError, LookupError) as error:
        if raised_by_user(error):
            raise
        return 0
