"""`python -m eroica.views RUN WINDOW FILE SECONDS`: draw one page; the collector starts it at low priority."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from eroica.wire.logs import log_to


def main(run: str, window: str, file: str, limit_s: str) -> int:
    """Draw a window of a run ("0": its final verdict) into a file; return 1 if that failed."""
    os.umask(0o077)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(float(limit_s))))
    log_to(Path(run) / "log" / "pages.log")
    try:
        from eroica.views.page import write_report

        write_report(Path(run), Path(file), int(window) or None)
    except Exception:  # nobody reads the output of this process
        logging.exception("%s could not be drawn", file)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
