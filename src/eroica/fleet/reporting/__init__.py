"""The side of a job that reports to the fleet: a process of low priority beside the collector.

The run directory is the spool. What the collector has written there is packed into pieces and sent until the service
says that it keeps them; whoever is killed at whatever moment begins again with what lies on disk.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def close_run(run: Path) -> None:
    """Pack what an earlier run of this directory has not handed over, before it is forgotten; costs nothing without."""
    if not (run / "fleet").is_dir():
        return
    from eroica.errors import EroicaError
    from eroica.fleet.reporting import reporter

    with contextlib.suppress(OSError, EroicaError):  # a full disk must not keep the new job from being watched
        reporter.close_run(run)
