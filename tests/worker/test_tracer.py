"""The tracer with torch itself, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
