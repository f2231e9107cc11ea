"""Healthy jobs side by side for a while, at default settings: every window but the baseline's was opened in vain.

    python benchmarks/healthy_hours.py --minutes 40 [--jobs 8] [--out hours.jsonl]

Each job has two ranks under gloo that sleep as if they computed (iterations of 40 to 600 ms, scattering by 4 %),
evaluate every 150 iterations and save every 400. They share the machine with each other and with whatever else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import machine_facts, revision

#: Milliseconds that the jobs compute in an iteration, in turn.
PACES_MS = (40, 150, 400, 80, 250, 600, 55, 110)
_TRAINING = """
import os, random, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

pace_s, place = float(sys.argv[1]) / 1e3, sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
random.seed(rank)
model = DistributedDataParallel(torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
iteration, enough = 0, torch.zeros(1)
while not enough:
    iteration += 1
    time.sleep(pace_s * max(0.5, random.gauss(1.0, 0.04)))
    loss = model(torch.randn(32, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 150 == 0:
        for _ in range(10):
            with torch.no_grad():
                model.module(torch.randn(32, 256))
            time.sleep(pace_s / 2)
    if iteration % 400 == 0 and rank == 0:
        torch.save(model.state_dict(), os.path.join(place, "checkpoint.pt"))
        time.sleep(0.3)
    if iteration % 20 == 0:
        enough = torch.tensor([float(os.path.exists(os.path.join(place, "enough")))])
        dist.all_reduce(enough)
"""


def start(place: Path, number: int) -> subprocess.Popen[bytes]:
    """One job under `eroica run`."""
    place.mkdir()
    (place / "train.py").write_text(_TRAINING)
    pace_ms = PACES_MS[number % len(PACES_MS)]
    command = [
        *(sys.executable, "-m", "eroica", "run", "--quiet", "--out", str(place / "run"), "--"),
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(29650 + number)),
        *(str(place / "train.py"), str(pace_ms), str(place)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = (place / "log").open("wb")
    return subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log)


def told(place: Path, number: int) -> dict[str, Any]:
    """Hours of a job, and the windows that were opened in it."""
    history = json.loads((place / "run" / "history.json").read_bytes())
    marks = [(one["kind"], round(one["at_s"], 1), one["iteration"], one["text"]) for one in history["marks"]]
    return {
        "pace_ms": PACES_MS[number % len(PACES_MS)],
        "hours": round(history["at_s"][-1] / 3600, 3),
        "iterations": history["iteration"][-1],
        "in_vain": [mark for mark in marks if mark[0] in ("trigger", "window", "blocked")],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--jobs", type=int, default=len(PACES_MS))
    parser.add_argument("--out", type=Path, help="one JSON object a job; appended to")
    options = parser.parse_args()
    lines, load = [], []
    with tempfile.TemporaryDirectory(prefix="eroica-hours-") as name:
        places = [Path(name) / str(number) for number in range(options.jobs)]
        jobs = [start(place, number) for number, place in enumerate(places)]
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end and any(job.poll() is None for job in jobs):
            time.sleep(10)
            load.append(os.getloadavg()[0])
        for place in places:
            (place / "enough").touch()
        for job in jobs:
            try:
                job.wait(120)
            except subprocess.TimeoutExpired:
                job.send_signal(signal.SIGTERM)
                job.wait(60)
        for number, place in enumerate(places):
            line = {**told(place, number), "load": round(sum(load) / max(len(load), 1), 2)}
            line |= {"revision": revision(), "machine": machine_facts()}
            lines.append(line)
            print(
                f"{line['pace_ms']} ms: {line['hours']} h, {line['iterations']} iterations, in vain: {line['in_vain']}"
            )
    if options.out:
        with options.out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    hours, vain = sum(line["hours"] for line in lines), sum(len(line["in_vain"]) for line in lines)
    print(f"{hours:.1f} job-hours, {vain} windows in vain, mean load {lines[0]['load'] if lines else 0}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
