"""Tensor parallel: columns, then rows of each layer are split over two workers; texts of different length."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, BATCH, LAYERS = 300, 64, 4, 3


class CopyToWorkers(torch.autograd.Function):
    """Nothing forward, a sum over the workers backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class SumOverWorkers(torch.autograd.Function):
    """A sum over the workers forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class ParallelMlp(nn.Module):
    def __init__(self, world: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.columns = nn.Linear(WIDTH, 4 * WIDTH // world)
        self.rows = nn.Linear(4 * WIDTH // world, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = CopyToWorkers.apply(self.norm(x))
        device_wait(6 + 0.15 * x.shape[1])
        return x + SumOverWorkers.apply(self.rows(nn.functional.gelu(self.columns(y))))


class ParallelLm(nn.Module):
    def __init__(self, world: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(ParallelMlp(world) for _ in range(LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Texts:
    """The same on all workers: they hold parts of one model."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)

    def next_batch(self) -> Tensor:
        length = int(torch.randint(16, 65, (), generator=self.random))
        return torch.randint(WORDS, (BATCH, length + 1), generator=self.random)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: nn.Module, texts: Texts) -> float:
    return sum(loss_of(model, texts.next_batch()).item() for _ in range(3)) / 3


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = ParallelLm(world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    phases = torch.optim.lr_scheduler.MultiStepLR(optimizer, [300, 600, 900], gamma=0.5)
    texts, held_out = Texts(SEED), Texts(SEED + 1)
    scores: list[float] = []
    tempo = Tempo("healthy_tensor_parallel_text", 1300, None)
    with tempfile.TemporaryDirectory(prefix="parallel-") as name:
        for step in tempo:
            loss = loss_of(model, texts.next_batch())
            optimizer.zero_grad()
            loss.backward()
            device_wait(22)
            optimizer.step()
            phases.step()
            if step % 75 == 74:
                scores.append(evaluate(model, held_out))
            if step % 150 == 149:
                torch.save(model.state_dict(), Path(name, f"part-{rank}.pt"))
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
