"""The guest in the user's training process.

What it promises: never raise into the user's loop, print nothing, no collective of its own, no thread that wakes up
without being asked, and nothing at all after its first failure, which is kept, logged once and visible to the agent,
but to take down a profiler of ours that stands then. It never waits for anybody, and for the device once for a window,
when its profiler is stopped. The exceptions are bounded: 2 s for open collectives where the user's own profiler starts
inside a window, 2 s each for those and for the device where the process ends there, and 10 s for a complete window to
be saved.
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
