"""Notice the end of a worker's process at once, and read its status from the kernel before its parent takes it away.

A pidfd becomes readable the moment the process is a zombie. Its status then stands in `/proc/PID/stat` until the parent
asks for it, and from Linux 6.15 on the pidfd itself tells it afterwards. Whether memory ran out is read from the
counter of kills in the process's cgroup.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
from collections import deque
from pathlib import Path
from typing import NamedTuple

from eroica.hardware.limits import parse_membership, parse_mounts, stat_files
from eroica.model.look import Ending

_INFO_REQUEST = 0xC000_0000 | 64 << 16 | 0xFF << 8 | 11  # PIDFD_GET_INFO with the first version's 64 bytes
_INFO_BYTES, _INFO_EXIT, _INFO_STATUS_AT = 64, 8, 60
_SIGKILL = 9
_KILLS_KEPT = 10
_ENDED = frozenset((b"Z", b"X"))


class ProcessFacts(NamedTuple):
    """Facts of `/proc/PID/stat`: the state's letter, clock ticks from boot to the start, and the exit status."""

    state: bytes
    start: int
    status: int


def process_facts(pid: int) -> ProcessFacts | None:
    """Read the kernel's facts of a process; None once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return ProcessFacts(fields[0], int(fields[19]), int(fields[49]) if len(fields) > 49 else 0)
    except (OSError, LookupError, ValueError):
        return None


def process_start(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None if it is gone or a zombie."""
    facts = process_facts(pid)
    return None if facts is None or facts.state in _ENDED else facts.start


def ending_of(status: int) -> Ending:
    """Translate a wait status into an ending."""
    if os.WIFSIGNALED(status):
        return Ending(kind="signal", number=os.WTERMSIG(status))
    return Ending(kind="exit", number=os.WEXITSTATUS(status))


def memory_files(pid: int) -> list[Path]:
    """Find the files in which the kernel counts processes killed for memory: of this one's cgroup, else of the host."""
    with contextlib.suppress(OSError):
        membership = parse_membership(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"), "memory")
        mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"), "memory")
        for name in ("memory.events", "memory.oom_control"):
            found = stat_files(mounts, membership, name)
            if found:
                return found[:1]
    return [Path("/proc/vmstat")]


def memory_kills(files: list[Path]) -> int:
    """Processes killed for want of memory so far; 0 where no counter exists."""
    total = 0
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
            total += sum(int(fields[1]) for fields in lines if len(fields) == 2 and fields[0] == "oom_kill")
    return total


class ProcessWatch:
    """One process, from the moment we know it to its end.

    Args:
        pid: Its id.
        started: Its start in clock ticks, as it said itself; 0 = whatever lives under that id now.

    Attributes:
        handle: A pidfd, readable once the process has ended; -1 where there is none.
    """

    def __init__(self, pid: int, started: int = 0) -> None:
        self.pid = pid
        self.handle = -1
        self._ending: Ending | None = None
        with contextlib.suppress(OSError, AttributeError):
            self.handle = os.pidfd_open(pid)
        facts = process_facts(pid)  # after the descriptor, so that both mean the same process
        self._started = started or (facts.start if facts is not None else -1)
        if facts is None or facts.start != self._started:
            self.close()
            self._ending = Ending()
        self._memory = memory_files(pid)
        self._kills = deque([memory_kills(self._memory)], maxlen=_KILLS_KEPT)

    @property
    def ending(self) -> Ending | None:
        """End of the process; None while it lives."""
        if self._ending is None and self._has_ended():
            self._ending = self._read()
            self.close()
        return self._ending

    def refresh(self) -> None:
        """Note the kills for memory so far. Only the last ones may be ours: a large process takes a while to die."""
        if self._ending is None:
            self._kills.append(memory_kills(self._memory))

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)

    def _has_ended(self) -> bool:
        if self.handle >= 0:
            poll = select.poll()
            poll.register(self.handle, select.POLLIN)
            return bool(poll.poll(0))
        return process_start(self.pid) != self._started

    def _read(self) -> Ending:
        ending = self._status()
        killed = ending.kind == "unknown" or (ending.kind == "signal" and ending.number == _SIGKILL)
        starved = killed and memory_kills(self._memory) > self._kills[0]
        return Ending(kind=ending.kind, number=ending.number, out_of_memory=starved)

    def _status(self) -> Ending:
        facts = process_facts(self.pid)
        if facts is not None and facts.start == self._started and facts.state in _ENDED:
            return ending_of(facts.status)
        status = _kept_status(self.handle)
        return Ending() if status is None else ending_of(status)


def _kept_status(handle: int) -> int | None:
    """The status of a process whose parent has taken it already, from Linux 6.15 on."""
    asked = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", asked, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(handle, _INFO_REQUEST, asked)
    except (OSError, ValueError):
        return None
    known, status = struct.unpack_from("=Q", asked, 0)[0], struct.unpack_from("=i", asked, _INFO_STATUS_AT)[0]
    return status if known & _INFO_EXIT else None
