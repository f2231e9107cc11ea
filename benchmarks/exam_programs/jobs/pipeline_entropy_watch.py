"""A pipeline of three stages (fill, then drain) by send and receive; a stage may watch the spread of its attention."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, HEADS, LENGTH, BATCH, MICRO = 200, 64, 8, 224, 2, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.watch, self.entropy = False, 0.0
        self.register_buffer("later", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def attend_watched(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """In double precision, with all weights kept, to see when attention collapses onto few words."""
        score = q.double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
        weight = score.masked_fill(self.later, float("-inf")).softmax(-1)
        seen = weight.detach()
        self.entropy = -(seen * (seen + 1e-12).log()).sum(-1).mean().item()
        return (weight @ v.double()).to(q.dtype)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, 1)
        if self.watch:
            mixed = self.attend_watched(q, k, v)
        else:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Stage(nn.Module):
    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.first, self.last = rank == 0, rank == world - 1
        if self.first:
            self.embed = nn.Embedding(WORDS, WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        if self.last:
            self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) if self.first else x
        x = self.attention(x)
        device_wait(6)
        x = x + self.mlp(x)
        return self.head(x) if self.last else x


class Schedule:
    """All micro-batches forward, then all backward."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.rank = stage, dist.get_rank()

    def receive(self, source: int) -> Tensor:
        buffer = torch.empty(BATCH, LENGTH, WIDTH)
        dist.recv(buffer, source)
        return buffer

    def forward_one(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = ids[:, :-1] if self.stage.first else self.receive(self.rank - 1).requires_grad_()
        y = self.stage(x)
        if not self.stage.last:
            dist.send(y.detach().contiguous(), self.rank + 1)
            return x, y
        return x, nn.functional.cross_entropy(y.flatten(0, 1), ids[:, 1:].flatten()) / MICRO

    def backward_one(self, x: Tensor, y: Tensor) -> None:
        y.backward(None if self.stage.last else self.receive(self.rank + 1))
        device_wait(8)
        if not self.stage.first:
            assert x.grad is not None
            dist.send(x.grad.contiguous(), self.rank - 1)

    def run(self, batches: list[Tensor]) -> None:
        kept = [self.forward_one(ids) for ids in batches]
        for x, y in kept:
            self.backward_one(x, y)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)
    stage = Stage(rank, world)
    schedule = Schedule(stage)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=3e-4)
    random = torch.Generator().manual_seed(SEED)
    tempo = Tempo("pipeline_entropy_watch", 590, 220)
    for step in tempo:
        if tempo.after_onset(step) and rank == 1:
            stage.attention.watch = True
        batches = [torch.randint(WORDS, (BATCH, LENGTH + 1), generator=random) for _ in range(MICRO)]
        optimizer.zero_grad()
        schedule.run(batches)
        optimizer.step()
    tempo.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
