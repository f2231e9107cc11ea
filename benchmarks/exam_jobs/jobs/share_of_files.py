"""Time-series model; the files are dealt out to the workers, each goes through its own ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

LENGTH, BATCH = 32, 16
PATIENCE = timedelta(seconds=int(os.environ.get("PATIENCE", "60")))


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True)
        self.device = Device(30)
        self.head = nn.Linear(32, 1)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.device(self.lstm(series)[0][:, -1]))


class SeriesFiles:
    """The station of worker 1 was out of order for a while, so it has fewer files."""

    def __init__(self, rank: int, clock: StepClock) -> None:
        self.files = clock.onset if rank == 1 and clock.onset >= 0 else clock.iters
        self.random = torch.Generator().manual_seed(200 + rank)

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self.files):
            yield torch.randn(BATCH, LENGTH + 1, 1, generator=self.random).cumsum(dim=1)


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, files: SeriesFiles, clock: StepClock) -> Tensor:
    total = torch.zeros(())
    for series in files:
        loss = nn.functional.mse_loss(model(series[:, :-1]), series[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        clock.tick()
    return total


def mean_of_epoch(total: Tensor, group: dist.ProcessGroup) -> float:
    dist.all_reduce(total, group=group)
    return total.item() / dist.get_world_size()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank = dist.get_rank()
    reports = dist.new_group(backend="gloo", timeout=PATIENCE)
    torch.manual_seed(25)
    clock = StepClock("share_of_files")
    model = DistributedDataParallel(Forecaster())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    clock.tick()
    total = train_epoch(model, optimizer, SeriesFiles(rank, clock), clock)
    loss = mean_of_epoch(total, reports)
    if rank == 0:
        print(f"loss of the epoch {loss:.3f}")
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
