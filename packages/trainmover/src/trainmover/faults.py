"""Fault injection inside moves, for tests, benchmarks and users.

TRAINMOVER_FAULT is a list "ACTION@POINT,..." for one process.

Actions: kill (SIGKILL), stop (SIGSTOP), slow (sleep for two seconds).
Points: prepare, hold, state, switch, restore, shadow. Without a point: wrong-role, other-code, other-version, and cold
(a standby runs no shadow iteration; not for DDP, which calls other collectives in its first iterations).
"""

from __future__ import annotations

import os
import signal
import time


def at(point: str) -> None:
    """Inject the faults that TRAINMOVER_FAULT names for this point."""
    for fault in os.environ.get("TRAINMOVER_FAULT", "").split(","):
        action, _, where = fault.partition("@")
        if where == point:
            _do(action)


def enabled(action: str) -> bool:
    """Return whether TRAINMOVER_FAULT names this action without a point."""
    return action in os.environ.get("TRAINMOVER_FAULT", "").split(",")


def _do(action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "slow":
        time.sleep(2.0)
