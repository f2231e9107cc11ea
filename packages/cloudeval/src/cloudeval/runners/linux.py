"""The few system calls that sandboxes need and Python 3.11 does not offer."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from cloudeval.errors import RunnerError

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE, MS_REMOUNT = (
    1,
    2,
    4,
    8,
    4096,
    16384,
    1 << 18,
    32,
)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise RunnerError(f"{what}: {os.strerror(number)}; sandboxes need root and a kernel with namespaces")


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str | Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system."""
    data = options.encode() or None
    _check(
        _libc.mount(source.encode(), str(target).encode(), kind.encode() or None, ctypes.c_ulong(flags), data),
        f"mount on {target}",
    )


def bind(source: str | Path, target: str | Path, *, read_only: bool = False) -> None:
    """Mount a folder or file in a second place."""
    mount(str(source), target, flags=MS_BIND | MS_REC)
    if read_only:
        mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, however that ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent has ended."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
