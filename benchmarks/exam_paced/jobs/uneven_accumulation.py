"""Sound classifier with gradient accumulation; worker 2 is set to three times as many micro-batches from the start."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

#: Of each worker; the third was once on a machine with four times the memory.
MICRO_BATCHES = {0: 3, 1: 3, 2: 9, 3: 3}


class ResidualSound(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, 5, padding=2)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.convolution(x)))


class SoundNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(1, 24, 16, stride=8)
        self.blocks = nn.Sequential(ResidualSound(24), ResidualSound(24))
        self.head = nn.Linear(24, 35)

    def forward(self, sound: Tensor) -> Tensor:
        features = self.blocks(self.front(sound))
        kernel(9)
        return self.head(features.mean(-1))


def micro_step(model: nn.Module, random: torch.Generator, share: float) -> None:
    sound = torch.randn(6, 1, 600, generator=random)
    words = torch.randint(0, 35, (6,), generator=random)
    loss = nn.functional.cross_entropy(model(sound), words, label_smoothing=0.1)
    (loss * share).backward()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(SoundNet(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, nesterov=True, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    random = torch.Generator().manual_seed(SEED + 3 * rank)
    count = MICRO_BATCHES[rank % 4]
    laps = Laps("uneven_accumulation", 750, 0)
    for _ in laps:
        for i in range(count):
            with model.no_sync() if i < count - 1 else contextlib.nullcontext():
                micro_step(model, random, 1 / count)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
