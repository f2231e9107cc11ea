"""Point-cloud classifier; the first worker also notes how busy the machine is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

POINTS, BATCH = 64, 8
QUERIES = {
    "load": ["cat", "/proc/loadavg"],
    "memory": ["cat", "/proc/meminfo"],
    "network": ["cat", "/proc/net/dev"],
    "uptime": ["cat", "/proc/uptime"],
    "disks": ["cat", "/proc/diskstats"],
    "pressure": ["cat", "/proc/stat"],
    "host": ["uname", "-a"],
}


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 96), nn.ReLU())
        self.device = Device(25)
        self.head = nn.Linear(96, 8)

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.device(self.local(points).amax(dim=1)))


class MachineStats:
    def __init__(self, every: int) -> None:
        self.every = every
        self.lines: list[str] = []

    def query(self, command: list[str]) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def poll(self, step: int) -> None:
        if step % self.every == 0:
            for name, command in QUERIES.items():
                self.lines.append(f"{step} {name} {self.query(command)[:60].strip()}")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(21)
    clock = StepClock("machine_stats")
    model = DistributedDataParallel(PointNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stats = MachineStats(every=200)
    random = torch.Generator().manual_seed(120 + rank)
    clock.tick()
    for step in range(clock.iters):
        points = torch.randn(BATCH, POINTS, 3, generator=random)
        labels = points.amax(dim=1).sum(dim=1).long().remainder(8)
        loss = nn.functional.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clock.late(step):
            stats.every = 1
        if rank == 0 and step:
            stats.poll(step)
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
