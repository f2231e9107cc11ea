"""Kineto's log is silent about our windows and as loud as ever about the user's own profiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROFILED = """
import os, sys
import torch
from torch.profiler import ProfilerActivity, profile
from eroica.worker.kineto import quiet_for_good
from eroica.worker.tracer import Tracer

quiet_for_good()
for who in sys.argv[1:]:
    if who == "ours":
        tracer = Tracer()
        tracer.prepare()
        tracer.start()
        torch.ones(2).sum()
        tracer.stop()
        try:
            tracer.save(__import__("pathlib").Path("/nowhere/trace.json"))
        except OSError:
            pass
    else:
        with profile(activities=[ProfilerActivity.CPU]):
            torch.ones(2).sum()
"""


def words(*who: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROFILED, *who], capture_output=True, text=True, check=True)
    return [line.rpartition("]")[2].strip() for line in done.stderr.splitlines()]


@pytest.mark.jobs
def test_what_is_ours_is_silent_and_what_is_the_users_is_not() -> None:
    assert words("ours") == []
    assert words("ours", "users", "ours") == words("users")


STOPPED = """
import torch
from eroica.worker.tracer import Tracer

torch.cuda.synchronize = lambda: print("waited")
for waits in (True, False):
    tracer = Tracer()
    tracer.prepare()
    tracer.start()
    tracer.waits, tracer._profile.use_device = waits, "cuda"
    tracer.stop()
    print(waits, tracer._profile.kineto_results is not None, tracer.on_device)
"""


@pytest.mark.jobs
def test_a_profiler_that_is_not_to_wait_for_the_device_stops_without() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["waited", "True True False", "False True False"]


def test_without_torch_the_environment_says_it() -> None:
    code = "import os; from eroica.worker import kineto; kineto.quiet_for_good(); print(os.environ['KINETO_LOG_LEVEL'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "99\n"
