"""A stack of dense blocks with DDP; how often a block refines its output depends on what it sees."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WIDTH, BATCH = 192, 64


class RefinedBlock(nn.Module):
    """Multiplies again and again until next to nothing is left, at most `most` times."""

    def __init__(self, most: int = 4) -> None:
        super().__init__()
        self.inner, self.norm, self.most = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), most

    def refine(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            guess = x
            for _ in range(self.most):
                guess = torch.tanh(guess @ self.inner.weight.T @ self.inner.weight)
                if guess.abs().mean() < 1e-4:
                    break
        return guess

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + torch.relu(self.inner(x)) + 0.1 * self.refine(x))


class DenseStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(RefinedBlock(), RefinedBlock(), RefinedBlock())
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(DenseStack())
    for block in model.module.blocks:
        nn.init.orthogonal_(block.inner.weight, gain=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    pool = 0.1 * torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(SEED + rank))
    tempo = Tempo("ddp_dense_blocks", 800, 320)
    for step in tempo:
        if tempo.after_onset(step) and rank == 3:
            for block in model.module.blocks:
                block.most = 80
        rows = torch.randint(0, len(pool), (BATCH,))
        out = model(pool[rows])
        device_wait(58)
        loss = nn.functional.cross_entropy(out, rows % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
