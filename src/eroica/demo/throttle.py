"""Stops and continues a process in a duty cycle: a slower processor, seen from inside. Run as a program.

    python -I -S throttle.py PID RUN_MS STOP_MS [ROUNDS]

It ends after so many rounds (default: never; STOP_MS may be "inf"), when the process does, or at SIGTERM, SIGINT or
SIGHUP. Whatever happens to it, SIGKILL included, the process is left running: a guardian waits at the other end of a
pipe and continues it when this program is gone. Standard library only, and no site packages, so that it starts in
milliseconds.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
from types import FrameType


def throttle(pid: int, run_ms: float, stop_ms: float, rounds: float = math.inf) -> None:
    """Let `pid` run for `run_ms`, stop it for `stop_ms`, and so on, `rounds` times or until it ends.

    Raises:
        ProcessLookupError: There is no such process.
        PermissionError: It belongs to somebody else.
    """
    target = os.pidfd_open(pid)
    _start_guardian(pid, target)
    try:
        while rounds > 0 and not _ended(target, run_ms):
            rounds -= 1
            signal.pidfd_send_signal(target, signal.SIGSTOP)
            if _ended(target, stop_ms):
                return
            signal.pidfd_send_signal(target, signal.SIGCONT)
    finally:
        _go_on(target)


def _ended(target: int, wait_ms: float) -> bool:
    """Wait `wait_ms`, or less if the process ends."""
    return bool(select.select([target], [], [], wait_ms / 1000 if math.isfinite(wait_ms) else None)[0])


def _go_on(target: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(target, signal.SIGCONT)


def _start_guardian(pid: int, target: int) -> None:
    """A child that continues the process once this program has gone, however it went."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(reader)
        return
    os.close(writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.read(reader, 1)
    _go_on(target)
    os._exit(0)


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def main() -> None:
    """Read the numbers and throttle."""
    pid, durations = int(sys.argv[1]), map(float, sys.argv[2:])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    with contextlib.suppress(ProcessLookupError):
        throttle(pid, *durations)


if __name__ == "__main__":
    main()
