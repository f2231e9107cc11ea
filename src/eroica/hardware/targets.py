"""The command line's way to name a worker: PID or PID:TID."""

from __future__ import annotations

from eroica.errors import UsageError
from eroica.hardware.processes import Target


def parse_target(text: str) -> Target:
    """`1234` (training thread = main thread) or `1234:1250`.

    Raises:
        UsageError: It is neither.
    """
    pid, colon, tid = text.partition(":")
    if not pid.isdecimal() or (colon and not tid.isdecimal()) or not 0 < int(pid) < 1 << 31:
        raise UsageError(f"--pid takes PID or PID:TID, not {text!r}")
    return Target(pid=int(pid), tid=int(tid) if colon else int(pid))
