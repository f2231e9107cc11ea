"""Language model on whole documents; each worker draws its own batch of documents."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

VOCABULARY, WIDTH, SHORT, BOOK = 300, 64, 24, 600


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(len(x), 3, 4, WIDTH // 4).permute(1, 2, 0, 3)
        scores = (q @ k.transpose(1, 2) / 4).tril().softmax(dim=-1)
        x = x + self.out((scores @ v).transpose(0, 1).reshape(len(x), WIDTH))
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.device = Device(40)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.device(x))


class Documents:
    """The second part of the corpus also has books; every batch has one, for one of the workers."""

    def __init__(self, rank: int, world: int, clock: StepClock) -> None:
        self.rank, self.world, self.clock = rank, world, clock
        self.turns = torch.randint(world, (100_000,), generator=torch.Generator().manual_seed(77)).tolist()
        self.random = torch.Generator().manual_seed(160 + rank)

    def next_document(self, step: int) -> Tensor:
        book = self.clock.late(step) and self.turns[step] == self.rank
        return torch.randint(VOCABULARY, (BOOK if book else SHORT,), generator=self.random)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(23)
    clock = StepClock("packed_documents", iters=300)
    documents = Documents(rank, dist.get_world_size(), clock)
    model = DistributedDataParallel(Decoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    clock.tick()
    for step in range(clock.iters):
        ids = documents.next_document(step)
        loss = nn.functional.cross_entropy(model(ids[:-1]), ids[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
