"""Runs a script on a clock of its own: a sleep takes its time and nothing else takes any, on any busy machine.

    clocked.py train.py ARGUMENTS

So what a rank works is its pace, to the nanosecond, and what is made of that can be compared exactly. On the real clock
`benchmarks/emulation.py` makes the same comparisons.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

from prismllm import recorder

now_ns = time.perf_counter_ns()


def sleep(seconds: float) -> None:
    global now_ns  # noqa: PLW0603 - the clock of the whole process
    now_ns += round(1e9 * seconds)


time.sleep = sleep
time.perf_counter_ns = lambda: now_ns
time.perf_counter = lambda: now_ns / 1e9
recorder._SCHEDULER = Path("/nowhere")  # what this thread waits for a core is no part of that clock
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
