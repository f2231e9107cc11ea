"""Memory that two processes of one user share and nobody can cut short. Standard library only: the worker imports this.

Who writes into a mapped file that somebody else has truncated is killed (SIGBUS). A sealed memory file cannot be
truncated by anybody. It has no name; who may look into the process that made it finds it as one of its open files.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
from typing import Any

_NO_EXECUTION = 8  # MFD_NOEXEC_SEAL, from Linux 6.3 on; it implies MFD_ALLOW_SEALING
_WANTED = ("pid", "file", "inode")


def can_be_shared() -> bool:
    """This process's open files can be reached by others of its user: the kernel hides those of guarded processes."""
    try:
        return os.stat("/proc/self/fd").st_uid == os.geteuid() and os.getuid() == os.geteuid()  # noqa: PTH116
    except OSError:
        return False


def create(name: str, size: int) -> tuple[int, mmap.mmap]:
    """Make such memory.

    Args:
        name: What the kernel's lists shall call it.
        size: Bytes.

    Returns:
        Its file, to be left open as long as somebody may still want to reach it, and the memory.

    Raises:
        OSError: There is no memory, or this kernel has nothing of the kind.
    """
    handle = _anonymous_file(name)
    try:
        os.posix_fallocate(handle, 0, size)  # a lack of memory shows here, not as SIGBUS in the training
        os.fchmod(handle, 0o600)
        memory = mmap.mmap(handle, size)
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(handle)
        raise
    return handle, memory


def _anonymous_file(name: str) -> int:
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _NO_EXECUTION)
    except OSError:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except AttributeError as error:  # an older C library
        raise OSError("no anonymous files here") from error


def whereabouts(handle: int) -> dict[str, int]:
    """What another process needs to know for `reach`; JSON-able."""
    return {"pid": os.getpid(), "file": handle, "inode": os.fstat(handle).st_ino}


def let_go(handle: int, inode: int) -> None:
    """Close the file, if the number still means it: a program that closes all files may have opened another one."""
    with contextlib.suppress(OSError):
        if handle >= 0 and os.fstat(handle).st_ino == inode:
            os.close(handle)


def reach(place: Any, size: int) -> mmap.mmap:
    """The memory that another process has made; empty memory if that process has ended meanwhile.

    Args:
        place: Its `whereabouts`.
        size: Bytes.

    Raises:
        ValueError: They are none, lead to something else, or may not be followed.
    """
    try:
        pid, file, inode = (place[name] for name in _WANTED)
    except (TypeError, LookupError):
        raise ValueError("its shared memory is nowhere") from None
    if not all(type(number) is int and 0 <= number < 1 << 64 for number in (pid, file, inode)):
        raise ValueError("its shared memory is nowhere")
    try:
        return _open(f"/proc/{pid}/fd/{file}", inode, size)
    except OSError as error:
        if has_ended(pid):
            return mmap.mmap(-1, size)
        raise ValueError(
            f"its shared memory is out of reach ({error.strerror}); set EROICA_SEALED_MEMORY=false for the job"
        ) from error


def _open(path: str, inode: int, size: int) -> mmap.mmap:
    _check(os.stat(path), inode, size)  # noqa: PTH116 - before it is opened: it may be anything by now
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        _check(os.fstat(handle), inode, size)
        if not fcntl.fcntl(handle, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError(0, "it is not sealed")
        return mmap.mmap(handle, size)
    finally:
        os.close(handle)


def _check(facts: os.stat_result, inode: int, size: int) -> None:
    ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid()
    if not ours or facts.st_ino != inode or facts.st_size != size:
        raise OSError(0, "another file is in its place")


def has_ended(pid: int) -> bool:
    """The process is gone, or nothing but its exit status is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
    except OSError:
        return True
