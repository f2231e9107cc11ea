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
from collections.abc import Callable

_ACTIONS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "slow": lambda: time.sleep(2.0),
}


def enabled(fault: str) -> bool:
    """Return whether TRAINMOVER_FAULT names this fault."""
    return fault in os.environ.get("TRAINMOVER_FAULT", "").split(",")


def at(point: str) -> None:
    """Inject the faults that TRAINMOVER_FAULT names for this point."""
    for name, act in _ACTIONS.items():
        if enabled(f"{name}@{point}"):
            act()
