"""Contrastive learning with gathered embeddings and a memory bank of older ones."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

BATCH, WIDTH, BANK = 48, 128, 16384


class Bank:
    """The last embeddings of this worker as a ring."""

    def __init__(self) -> None:
        self.rows = nn.functional.normalize(torch.randn(BANK, WIDTH), dim=1)
        self.next = 0

    def add(self, rows: Tensor) -> None:
        places = (torch.arange(len(rows)) + self.next) % BANK
        self.rows[places] = rows
        self.next = int(places[-1]) + 1

    def negatives(self, count: int) -> Tensor:
        return self.rows[torch.randint(0, BANK, (count,))]


def gather_rows(mine: Tensor) -> Tensor:
    """Rows of all workers; only the own ones have a gradient."""
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine.detach().contiguous())
    parts[dist.get_rank()] = mine
    return torch.cat(parts)


def info_nce(a: Tensor, b: Tensor, negatives: Tensor, temperature: float = 0.2) -> Tensor:
    a, b = nn.functional.normalize(a, dim=1), nn.functional.normalize(b, dim=1)
    keys = torch.cat([gather_rows(b), negatives])
    offset = dist.get_rank() * len(a)
    return nn.functional.cross_entropy(a @ keys.t() / temperature, torch.arange(len(a)) + offset)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(4, 32, 7, stride=2), nn.ReLU(), nn.Conv1d(32, 48, 5, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(192, WIDTH),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        kernel(28)
        return self.body(x)


def shared_negatives(bank: Bank, everywhere: bool) -> Tensor:
    if not everywhere:
        return bank.negatives(256)
    whole = gather_rows(bank.rows)
    return whole[torch.randint(0, len(whole), (256,))]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model, bank = DistributedDataParallel(Encoder()), Bank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    random = torch.Generator().manual_seed(SEED + 31 * rank)
    laps = Laps("contrastive_bank", 1080, 480)
    for step in laps:
        signal = torch.randn(BATCH, 4, 128, generator=random)
        both = torch.cat([signal, signal + 0.1 * torch.randn(signal.shape, generator=random)])
        a, b = model(both).chunk(2)
        loss = info_nce(a, b, shared_negatives(bank, laps.late(step)))
        optimizer.zero_grad()
        loss.backward()
        kernel(20)
        optimizer.step()
        bank.add(nn.functional.normalize(b.detach(), dim=1))
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
