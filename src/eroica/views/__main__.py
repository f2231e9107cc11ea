"""`python -m eroica.views RUN WINDOW FILE`: draws one page, started by the collector beside a job that may go on.

It is nobody's child for long: it gives way to everything else on the host, and ends by itself after its time.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from eroica.wire.logs import log_to


def main(run: str, window: str, file: str, limit_s: str) -> int:
    """Draw window `window` of a run, or with "0" its final verdict, into `file`; 1 if that failed."""
    os.umask(0o077)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(float(limit_s))))
    log_to(Path(run) / "log" / "pages.log")
    try:
        from eroica.views.write import write_report

        write_report(Path(run), Path(file), int(window) or None)
    except Exception:  # last words of a process without a terminal
        logging.exception("%s could not be drawn", file)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
