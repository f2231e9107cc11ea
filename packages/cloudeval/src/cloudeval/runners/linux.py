"""The few system calls that sandboxes need and Python 3.11 does not offer."""

import ctypes
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

from cloudeval.errors import RunnerError

_libc = ctypes.CDLL(None, use_errno=True)

#: CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID and CLONE_NEWNET of sched.h.
EVERY_NAMESPACE = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 16384, 1 << 18
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
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
    done = _libc.mount(source.encode(), str(target).encode(), kind.encode() or None, ctypes.c_ulong(flags), data)
    _check(done, f"mount on {target}")


def loopback_up() -> None:
    """Bring the loopback link of this process's network namespace up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, however that ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent has ended."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
