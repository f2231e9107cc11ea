"""CNN whose workers are bound to cores; an indexer of thumbnails is later started on the core of worker 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

INDEXER = """
import os, sys, zlib
os.sched_setaffinity(0, {int(sys.argv[1])})
parent, block = os.getppid(), os.urandom(1 << 16)
while os.getppid() == parent:
    zlib.crc32(zlib.compress(block, 6))
"""


def bind(rank: int) -> int:
    """As the launcher of the cluster does: one core a worker."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[rank % len(cores)]
    os.sched_setaffinity(0, {core})
    return core


def start_indexer(core: int, processes: int = 3) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-S", "-c", INDEXER, str(core)]) for _ in range(processes)]


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b, stride in ((3, 24, 1), (24, 32, 2), (32, 48, 1), (48, 64, 2)):
        layers += [nn.Conv2d(a, b, 3, stride, 1), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 50))


def main() -> None:
    rank = int(os.environ["RANK"])
    core = bind(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    pool = torch.randn(128, 3, 32, 32, generator=torch.Generator().manual_seed(rank))
    indexers: list[subprocess.Popen[bytes]] = []
    laps = Laps("cnn_core_sharing", 880, 390)
    for step in laps:
        if laps.late(step) and rank == 1 and not indexers:
            indexers = start_indexer(core)
        rows = torch.randint(0, 128, (24,))
        kernel(35)
        loss = nn.functional.cross_entropy(model(pool[rows]), rows % 50)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    for process in indexers:
        process.kill()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
