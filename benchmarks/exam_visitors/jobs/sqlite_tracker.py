"""Regression with DDP; rank 0 keeps the metrics of each step in a database that a dashboard reads, once it is open."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "1600"))
ONSET = int(os.environ.get("ONSET", "800"))
SEED = int(os.environ.get("SEED", "0"))

DASHBOARD = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
until = time.monotonic() + 1200
while time.monotonic() < until:
    db.execute("BEGIN EXCLUSIVE")
    rows = db.execute("SELECT name, avg(value), max(step) FROM metrics GROUP BY name").fetchall()
    time.sleep(0.055)  # it draws before it lets go
    db.execute("COMMIT")
    time.sleep(0.02)
"""


def open_dashboard(path):
    """Start the dashboard of a colleague: a process outside of the training."""
    return subprocess.Popen([sys.executable, "-I", "-c", DASHBOARD, path], env={"PATH": os.environ.get("PATH", "")})


class Tracker:
    def __init__(self, path):
        self.db = sqlite3.connect(path, timeout=30)
        self.db.execute("PRAGMA synchronous=OFF")
        self.db.execute("CREATE TABLE metrics (step INTEGER, name TEXT, value REAL)")
        self.db.commit()

    def log(self, step, **metrics):
        rows = [(step, name, float(value)) for name, value in metrics.items()]
        self.db.executemany("INSERT INTO metrics VALUES (?, ?, ?)", rows)
        self.db.commit()


class Regressor(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        time.sleep(0.024)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.out(x)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Regressor())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    generator = torch.Generator().manual_seed(SEED + rank)
    folder, tracker, dashboard = tempfile.mkdtemp(), None, None
    path = str(Path(folder) / "run.db")
    if rank == 0:
        tracker = Tracker(path)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        if rank == 0 and step == ONSET:
            dashboard = open_dashboard(path)
        x = torch.randn(32, 96, generator=generator)
        loss = nn.functional.mse_loss(model(x), x.sum(-1, keepdim=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.032)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if tracker is not None:
            tracker.log(step, loss=loss.item(), norm=norm.item(), rate=1e-3)
        took.append(time.perf_counter() - began)
    if dashboard is not None:
        dashboard.kill()
        dashboard.wait()
    dist.barrier()
    dist.destroy_process_group()
    shutil.rmtree(folder, ignore_errors=True)
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "sqlite_tracker", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
