"""`python -m eroica.fleet.reporting RUN JOB HOST COLLECTOR`: the reporter of one run, started by its collector.

It gives way to everything else on the host, outlives the collector for as long as something waits, and is nobody's
child: a job's end does not end it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from eroica.errors import EroicaError
from eroica.fleet.reporting.reporter import Reporter
from eroica.settings import load_settings
from eroica.wire.logs import log_to


def main(run: str, job: str, host: str, collector: str) -> int:
    """Report until everything is handed over; 1 if something still waits."""
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log_to(Path(run) / "log" / "fleet.log")
    try:
        return 0 if Reporter(Path(run), job, host, load_settings(), int(collector)).work() else 1
    except EroicaError as error:
        logging.error("nothing is reported to the fleet: %s", error)
    except Exception:  # last words of a process without a terminal
        logging.exception("the reporter failed")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
