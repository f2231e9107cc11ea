"""Digits with DDP; each worker reads its own share of the data on the way, one of them from a mount that gets busy."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

BATCH = 32
Sample = tuple[Tensor, int]


class Digits(Dataset[Sample]):
    def __init__(self, seed: int, count: int) -> None:
        self.pixels = torch.randn(512, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        return self.pixels[index % 512], index % 10


class CollateFromMount:
    """Puts samples together; `latency_s`: what the mount needs to answer for one batch."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s

    def __call__(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        time.sleep(self.latency_s)
        return torch.stack([one for one, _ in samples]), torch.tensor([kind for _, kind in samples])


class DigitNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(16 * 36, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        device_wait(55)
        return self.head(self.conv(x))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    tempo = Tempo("ddp_digits_collate", 860, 350)
    collate = CollateFromMount(0.004)
    loader = DataLoader(Digits(SEED + rank, BATCH * tempo.iters), BATCH, collate_fn=collate)
    model = DistributedDataParallel(DigitNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    batches = iter(loader)
    for step in tempo:
        if tempo.after_onset(step) and rank == 1:
            collate.latency_s = 0.055
        pixels, kinds = next(batches)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(pixels), kinds)
        loss.backward()
        optimizer.step()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
