"""The tracer with torch itself, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from eroica.worker.kineto import save_unlocked
from eroica.worker.tracer import _NAMES, ProfilerDoor

PROGRAM = """
import sys
import threading
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from eroica.worker.tracer import ProfilerDoor, Tracer

door = ProfilerDoor(lambda: None)
door.open()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for operators in (True, False):
    tracer = Tracer(operators=operators)
    door.ours = threading.get_ident()
    tracer.prepare()
    tracer.start()
    for batch in DataLoader(torch.randn(16, 8), batch_size=4):
        with torch.profiler.record_function("mine"):
            loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tracer.pause()
    tracer.stop()
    door.ours = 0
    tracer.save(Path(sys.argv[1]) / f"{operators}.json")
    tracer.drop()
"""


def names_in(path: Path) -> list[str]:
    return [event["name"] for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]


def test_without_operators_steps_batches_and_ranges_of_the_user_remain(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, timeout=120)
    whole, without = names_in(tmp_path / "True.json"), names_in(tmp_path / "False.json")
    assert any(name.startswith("aten::") for name in whole)
    assert not any(name.startswith("aten::") for name in without)
    for kept in ("Optimizer.step#SGD.step", "mine", "enumerate(DataLoader)"):
        assert sum(kept in name for name in without) == sum(kept in name for name in whole) >= 4
    assert 10 * len(without) < len(whole)


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


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of torch as its profilers start and stop by."""
    torch, autograd, module = (
        types.ModuleType(name) for name in ("torch", "torch.autograd", "torch.autograd.profiler")
    )
    for name in _NAMES:
        setattr(module, name, lambda: None)
    setattr(module, "_is_profiler_enabled", False)  # noqa: B010 - a module declares no attributes
    setattr(autograd, "_profiler_enabled", lambda: False)  # noqa: B010
    setattr(autograd, "profiler", module)  # noqa: B010
    setattr(torch, "autograd", autograd)  # noqa: B010
    for one in (torch, autograd, module):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    return module


def refuse() -> None:
    raise RuntimeError("Profiler is already enabled on this thread")


def test_a_profiler_of_the_user_is_seen_from_its_preparation_to_its_end(profiler: Any) -> None:
    ways: list[None] = []
    door = ProfilerDoor(lambda: ways.append(None))
    door.open()
    assert not door.taken
    profiler._prepare_profiler()
    profiler._enable_profiler()
    assert (door.taken, len(ways)) == (True, 2)
    profiler._disable_profiler()
    assert (door.taken, len(ways)) == (False, 2)


def test_a_profiler_that_was_there_before_the_door_is_seen(profiler: Any) -> None:
    profiler._is_profiler_enabled = True
    door = ProfilerDoor(lambda: None)
    door.open()
    assert door.taken
    profiler._disable_profiler()
    assert not door.taken


def test_a_profiler_that_torch_refuses_is_not_taken_for_a_running_one(profiler: Any) -> None:
    profiler._enable_profiler = refuse
    door = ProfilerDoor(lambda: None)
    door.open()
    profiler._prepare_profiler()
    profiler._is_profiler_enabled = True  # torch says so before it tries
    with pytest.raises(RuntimeError, match="already enabled"):
        profiler._enable_profiler()
    assert not door.taken


def test_leaving_takes_nothing_away_that_somebody_has_put_there_since(profiler: Any) -> None:
    original, theirs = profiler._prepare_profiler, refuse
    door = ProfilerDoor(lambda: None)
    door.open()
    profiler._enable_profiler = theirs
    door.close()
    assert profiler._prepare_profiler is original
    assert profiler._enable_profiler is theirs
