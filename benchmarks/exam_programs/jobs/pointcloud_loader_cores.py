"""Point clouds; loader processes are bound to one core of the machine, which other programs may use as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

THUMBNAILS = """
import os, sys, zlib
os.sched_setaffinity(0, {int(sys.argv[1])})
parent, picture = os.getppid(), os.urandom(1 << 15)
while os.getppid() == parent:
    zlib.compress(picture, 6)
"""
POINTS, BATCH, KINDS = 700, 8, 15


class Scans(Dataset[tuple[Tensor, int]]):
    def __init__(self, seed: int, count: int) -> None:
        self.points = torch.randn(64, POINTS, 3, generator=torch.Generator().manual_seed(seed))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def farthest(self, points: Tensor, wanted: int) -> Tensor:
        """Points that lie far from each other."""
        distance, chosen, last = torch.full((len(points),), 1e9), [], 0
        for _ in range(wanted):
            chosen.append(last)
            distance = torch.minimum(distance, (points - points[last]).square().sum(1))
            last = int(distance.argmax())
        return points[chosen]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.farthest(self.points[index % 64], 128), index % KINDS


def bind_loader(_: int) -> None:
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.head = nn.Linear(64, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.points(x).amax(1))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    tempo = Tempo("pointcloud_loader_cores", 550, 220)
    scans = Scans(SEED + rank, BATCH * tempo.iters)
    bound = bind_loader if rank == 0 else None
    loader = DataLoader(scans, BATCH, num_workers=1, worker_init_fn=bound, prefetch_factor=2)
    model = DistributedDataParallel(PointNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    others: list[subprocess.Popen[bytes]] = []
    batches = iter(loader)
    for step in tempo:
        if tempo.after_onset(step) and rank == 0 and not others:
            core = str(max(os.sched_getaffinity(0)))
            others = [subprocess.Popen([sys.executable, "-S", "-c", THUMBNAILS, core]) for _ in range(5)]
        points, kinds = next(batches)
        out = model(points)
        device_wait(92)
        loss = nn.functional.cross_entropy(out, kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for process in others:
        process.kill()
        process.wait(10)
    tempo.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
