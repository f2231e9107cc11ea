"""Language model in three stages, micro-batches sent along; the head of the last stage goes to double precision."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

MICRO, ROWS, LENGTH, WIDTH, WORDS = 4, 4, 32, 96, 6000


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.along, self.across = nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=8), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.along(x.transpose(1, 2))[..., :LENGTH].transpose(1, 2)
        return x + self.across(torch.relu(y))


class Stage(nn.Module):
    def __init__(self, index: int, count: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH) if index == 0 else None
        self.mixers = nn.Sequential(Mixer(), Mixer())
        self.head = nn.Linear(WIDTH, WORDS) if index == count - 1 else None
        self.exact = False

    def exact_logits(self, x: Tensor) -> Tensor:
        assert self.head is not None
        weight, bias = self.head.weight.double(), self.head.bias.double()
        return nn.functional.linear(x.double(), weight, bias).log_softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        x = self.mixers(x)
        kernel(4)
        if self.head is None:
            return x
        return self.exact_logits(x) if self.exact else self.head(x[:, -8:])


class Schedule:
    """All micro-batches forward, then all backward."""

    def __init__(self, stage: Stage, rank: int, world: int) -> None:
        self.stage, self.rank, self.last = stage, rank, world - 1
        self.kept: list[tuple[Tensor | None, Tensor]] = []

    def forward(self, texts: Tensor) -> None:
        for text in texts:
            x: Tensor | None = None
            if self.rank > 0:
                x = torch.empty(ROWS, LENGTH, WIDTH)
                dist.recv(x, self.rank - 1)
                x.requires_grad_()
            y = self.stage(text[:, :-1] if x is None else x)
            if self.rank < self.last:
                dist.send(y.detach().contiguous(), self.rank + 1)
            else:
                goal = text[:, 1:][:, -y.shape[1] :]
                y = nn.functional.cross_entropy(y.flatten(0, 1), goal.flatten())
            self.kept.append((x, y))

    def backward(self) -> None:
        for x, y in self.kept:
            if self.rank == self.last:
                (y / MICRO).backward()
            else:
                grad = torch.empty(ROWS, LENGTH, WIDTH)
                dist.recv(grad, self.rank + 1)
                y.backward(grad)
            kernel(5)
            if x is not None:
                dist.send(x.grad.contiguous(), self.rank - 1)
        self.kept.clear()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)
    stage = Stage(rank, world)
    schedule = Schedule(stage, rank, world)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05)
    random = torch.Generator().manual_seed(SEED)
    laps = Laps("pipeline_wide_head", 740, 320)
    for step in laps:
        if laps.late(step):
            stage.exact = True
        texts = torch.randint(0, WORDS, (MICRO, ROWS, LENGTH + 1), generator=random)
        schedule.forward(texts)
        schedule.backward()
        optimizer.step()
        optimizer.zero_grad()
    laps.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
