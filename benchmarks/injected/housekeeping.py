"""A program of somebody else on a worker's host: keeps a core busy, or its memory, all the time or now and then.

    python -I -S housekeeping.py PID CORE MEGABYTES BUSY_S IDLE_S

Prints the id of the process that works, which belongs to nobody: not the child of whoever started it. It runs on CORE
only (-1 = on any), copies MEGABYTES to and fro (0 = only counts), works BUSY_S, sleeps IDLE_S (0 = never), and ends
when process PID does or at SIGTERM. Standard library only, and no site packages.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time


def work(megabytes: float, until: float) -> None:
    """Keep a core busy until then (clock of `time.monotonic`)."""
    blocks = [bytearray(1_000_000) for _ in range(int(megabytes))]
    while time.monotonic() < until:
        if blocks:
            for number in range(len(blocks)):
                blocks[number][:] = blocks[number - 1]
        else:
            sum(range(20_000))


def main() -> None:
    """Leave the family, then work until the other process has ended."""
    pid, core = int(sys.argv[1]), int(sys.argv[2])
    megabytes, busy_s, idle_s = map(float, sys.argv[3:6])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    target = os.pidfd_open(pid)
    if os.fork():
        os._exit(0)
    os.setsid()
    if core >= 0:
        os.sched_setaffinity(0, {core})
    os.write(1, b"%d\n" % os.getpid())
    os.close(1)
    while not select.select([target], [], [], idle_s)[0]:
        work(megabytes, time.monotonic() + busy_s)


if __name__ == "__main__":
    main()
