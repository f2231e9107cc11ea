"""Saving a real trace without the interpreter lock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.worker.kineto import save_unlocked

CODE = """
import sys, os, threading, time
os.environ["KINETO_LOG_LEVEL"] = "99"
from pathlib import Path
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile
from eroica.worker.kineto import save_unlocked
place = Path(sys.argv[1])
with profile(use_kineto=True, experimental_config=_ExperimentalConfig(trace_only=True)) as run:
    x = torch.ones(4)
    for _ in range(30000):
        x = x + 1
ticks = []
thread = threading.Thread(target=lambda: ticks.append(save_unlocked(run.kineto_results, place / "unlocked.json")))
longest = 0.0
begin = last = time.perf_counter()
thread.start()
while thread.is_alive():
    now = time.perf_counter()
    longest, last = max(longest, now - last), now
print(ticks[0], longest, last - begin)
"""


@pytest.mark.jobs
def test_it_writes_the_whole_trace_and_lets_others_run_meanwhile(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    done, longest, took = ran.stdout.split()
    assert done == "True"
    assert float(longest) < 0.7 * float(took)
    document = json.loads((tmp_path / "unlocked.json").read_bytes())
    assert sum(event.get("name") == "aten::add" for event in document["traceEvents"]) == 30_000


def test_it_refuses_what_is_not_torchs_object(tmp_path: Path) -> None:
    class Impostor:
        __slots__ = ("a", "b", "c")

        def trace_start_ns(self) -> int:
            return 1

    assert not save_unlocked(Impostor(), tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()
