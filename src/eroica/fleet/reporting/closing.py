"""What `eroica run` does before it forgets an earlier run of the same directory; costs nothing where none reported."""

from __future__ import annotations

import contextlib
from pathlib import Path


def close_run(run: Path) -> None:
    """Pack what the earlier run has not handed over; the next run in this directory is another one."""
    if not (run / "fleet").is_dir():
        return
    from eroica.errors import EroicaError
    from eroica.fleet.reporting import reporter

    with contextlib.suppress(OSError, EroicaError):  # a full disk must not keep the new job from being watched
        reporter.close_run(run)
