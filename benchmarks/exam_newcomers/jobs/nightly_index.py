"""Speech frames under DDP, one core for each rank; at some hour cron rebuilds an index on the host of rank 1."""

import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "760"))
ONSET = int(os.environ.get("ONSET", "470"))
SEED = int(os.environ.get("SEED", "0"))
INDEXER = """
import hashlib, os, time
parent, until = os.getppid(), time.time() + 400
while os.getppid() == parent and time.time() < until:
    for number in range(20000):
        hashlib.blake2b(str(number).encode()).hexdigest()
"""


def cron(core):
    """What cron starts on that host: an indexer on the core that this rank has (no part of the training)."""
    started = []
    for _ in range(1):
        command = [sys.executable, "-S", "-c", INDEXER]
        started.append(subprocess.Popen(command, start_new_session=True))
        os.sched_setaffinity(started[-1].pid, {core})
    return started


def features(waves, window):
    spectrum = torch.stft(waves, 256, 64, window=window, return_complex=True).abs()
    return torch.log1p(spectrum).transpose(1, 2)


class Recognizer(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inward = nn.Linear(129, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, 30)

    def forward(self, frames):
        hidden, _ = self.cell(torch.relu(self.inward(frames)))
        return self.out(hidden)


def main():
    core = sorted(os.sched_getaffinity(0))
    core = core[int(os.environ["RANK"]) % len(core)]
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Recognizer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED + rank)
    window, neighbors, took = torch.hann_window(256), [], []
    for step in range(ITERS):
        began = time.perf_counter()
        if step == ONSET and rank == 1:
            neighbors = cron(core)
        waves = torch.randn(8, 9600, generator=generator)
        labels = torch.randint(30, (8,), generator=generator)
        frames = features(waves, window)
        loss = nn.functional.cross_entropy(model(frames).mean(1), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.03)
        optimizer.step()
        took.append(time.perf_counter() - began)
    for neighbor in neighbors:
        neighbor.kill()
        neighbor.wait()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "nightly_index", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
