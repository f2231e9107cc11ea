"""Faults inside a move, for tests, benchmarks and whoever wants to see what happens.

TRAINMOVER_FAULT is a list "ACTION@POINT,…" for one process; the point is where in a move the process is.

Actions: kill (as kill -9), stop (as SIGSTOP), slow (sleeps for two seconds).
Points: prepare, hold, state, switch, restore, shadow. Without a point: wrong-role, other-code, other-version.

To measure what a part is worth, it can be left out. With "rebuild" (in all processes) nothing is prepared: all
connections of all groups are made anew in the pause. With "cold" (in a standby) the joiner has built its part of the
model and run no shadow iteration; not for DDP, which calls other collectives in its first iterations.
"""

from __future__ import annotations

import os
import signal
import time

POINTS = ("prepare", "hold", "state", "switch", "restore", "shadow")


def at(point: str) -> None:
    """Do what TRAINMOVER_FAULT wants done here."""
    for fault in os.environ.get("TRAINMOVER_FAULT", "").split(","):
        action, _, where = fault.partition("@")
        if where == point:
            _do(action)


def enabled(action: str) -> bool:
    """Whether TRAINMOVER_FAULT has an action that something else than a point looks for."""
    return action in os.environ.get("TRAINMOVER_FAULT", "").split(",")


def _do(action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "slow":
        time.sleep(2.0)
