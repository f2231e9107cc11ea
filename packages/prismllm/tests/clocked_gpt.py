"""The example GPT on a clock of its own: a sleep takes its time and nothing else takes any, on any busy machine.

So what a rank works is its pace, to the nanosecond, and what is made of that can be compared exactly. On the real clock
`benchmarks/emulation.py` makes the same comparisons.
"""

from __future__ import annotations

import runpy
import time
from pathlib import Path

from prismllm import examples, session

now_ns = time.perf_counter_ns()


def sleep(seconds: float) -> None:
    global now_ns  # noqa: PLW0603 - the clock of the whole process
    now_ns += round(1e9 * seconds)


time.sleep = sleep
time.perf_counter_ns = lambda: now_ns
time.perf_counter = lambda: now_ns / 1e9
session._SCHEDULER = Path("/nowhere")  # what this thread waits for a core is no part of that clock
runpy.run_path(str(Path(examples.__file__).parent / "gpt.py"), run_name="__main__")
