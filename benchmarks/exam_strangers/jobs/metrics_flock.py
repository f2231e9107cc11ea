"""Sentence classifier under DDP; every rank appends its metrics to one file of the run, under a lock."""

import fcntl
import json
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ITERS = int(os.environ.get("ITERS", "2400"))
ONSET = int(os.environ.get("ONSET", "1000"))
SEED = int(os.environ.get("SEED", "0"))

CONFIG = {"batch": 16, "length": 32, "vocabulary": 2000, "dim": 64, "lr": 1e-3, "log_every": 50}


class MetricsFile:
    """Lines of JSON that several processes append to; on the shared file system, so that the dashboard finds it."""

    def __init__(self, path):
        self.path = path

    def append(self, record):
        with self.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                file.write(json.dumps(record) + "\n")
                file.flush()
                self.commit(file)
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

    @staticmethod
    def commit(file):
        os.fsync(file.fileno())
        time.sleep(0.006)  # the file server's answer


class Classifier(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocabulary, dim)
        self.body = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

    def forward(self, tokens):
        time.sleep(0.018)
        return self.body(self.embed(tokens))


def train(rank, path):
    model = DDP(Classifier(CONFIG["vocabulary"], CONFIG["dim"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG["lr"])
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100)
    metrics = MetricsFile(path)
    generator = torch.Generator().manual_seed(SEED * 10 + rank)
    durations = []
    for step in range(ITERS):
        tick = time.perf_counter()
        if step == ONSET:
            CONFIG["log_every"] = 1  # the run is a "hero run" from here: the dashboard wants each step
        tokens = torch.randint(CONFIG["vocabulary"], (CONFIG["batch"], CONFIG["length"]), generator=generator)
        labels = tokens[:, 0] % 4
        logits = model(tokens)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % CONFIG["log_every"] == 0:
            accuracy = (logits.argmax(1) == labels).float().mean().item()
            lr = schedule.get_last_lr()[0]
            metrics.append({"rank": rank, "step": step, "loss": loss.item(), "accuracy": accuracy, "lr": lr})
        durations.append(time.perf_counter() - tick)
    return durations


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    rank = dist.get_rank()
    where = [tempfile.mkdtemp(prefix="run-") if rank == 0 else None]
    dist.broadcast_object_list(where, src=0)
    path = Path(where[0]) / "metrics.jsonl"
    durations = train(rank, path)
    dist.barrier()
    if rank == 0:
        path.unlink()
        path.parent.rmdir()
    dist.destroy_process_group()
    if rank == 0:
        before = torch.tensor(durations[min(10, ONSET // 2) : ONSET]).mean().item()
        after = torch.tensor(durations[ONSET:]).mean().item()
        print(json.dumps({"job": "metrics_flock", "mean_ms_before": before * 1e3, "mean_ms_after": after * 1e3}))


if __name__ == "__main__":
    main()
