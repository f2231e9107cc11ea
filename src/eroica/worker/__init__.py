"""The guest in the user's training process.

The guest promises: it never raises into the user's loop, prints nothing, calls no collective, and runs no thread that
wakes up without being asked. After its first failure it does nothing at all, but to take down a profiler of ours that
stands then. The failure is kept, logged once and visible to the agent. The guest waits for nobody, and for the device
once for a window, when its profiler is stopped. The exceptions are bounded: 2 s for open collectives where the user's
own profiler starts inside a window, and 2 s each for those and for the device where the process ends there. A complete
window has 10 s to be saved.

Standard library only, and torch once the user has it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would double what a Python of a watched job costs at its start
if TYPE_CHECKING:
    from pathlib import Path


def bootstrap_directory() -> Path:
    """The directory that, put first on PYTHONPATH, brings Eroica into every Python of a job."""
    from pathlib import Path

    return Path(__file__).resolve().parent / "bootstrap"
