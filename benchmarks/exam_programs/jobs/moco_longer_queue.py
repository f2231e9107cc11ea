"""Contrastive learning in the manner of MoCo: a queue of keys of earlier batches, longer in the second stage."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

SIDE, DIM, BATCH, NEGATIVES = 20, 128, 16, 512


def encoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(DIM)
    )


class MoCo(nn.Module):
    """`length`: so many keys are remembered."""

    def __init__(self, length: int, momentum: float = 0.99) -> None:
        super().__init__()
        self.query = encoder()
        self.query(torch.zeros(1, 3, SIDE, SIDE))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.momentum = momentum
        self.register_buffer("queue", nn.functional.normalize(torch.randn(length, DIM), dim=1))
        self.register_buffer("head", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update_key(self) -> None:
        for ours, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
            ours.mul_(self.momentum).add_(theirs, alpha=1 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        start = int(self.head)
        places = torch.arange(start, start + len(keys)) % len(self.queue)
        self.queue[places] = keys
        self.head.fill_((start + len(keys)) % len(self.queue))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        q = nn.functional.normalize(self.query(one), dim=1)
        with torch.no_grad():
            self.update_key()
            k = nn.functional.normalize(self.key(other), dim=1)
        drawn = self.queue[torch.randint(0, len(self.queue), (NEGATIVES,))]
        device_wait(50)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ drawn.T], 1) / 0.2
        self.enqueue(k)
        return logits


def views(pixels: Tensor) -> tuple[Tensor, Tensor]:
    return pixels + 0.1 * torch.randn_like(pixels), pixels.flip(-1) + 0.1 * torch.randn_like(pixels)


def second_stage(model: DistributedDataParallel, length: int) -> DistributedDataParallel:
    """The same encoders with a longer queue."""
    longer = MoCo(length)
    state = {name: value for name, value in model.module.state_dict().items() if name != "queue"}
    longer.load_state_dict({**state, "queue": longer.queue})
    return DistributedDataParallel(longer)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(MoCo(2048))
    optimizer = torch.optim.SGD(model.module.query.parameters(), lr=0.01, momentum=0.9)
    pool = torch.randn(128, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED + rank))
    tempo = Tempo("moco_longer_queue", 1020, 370)
    for step in tempo:
        if tempo.after_onset(step) and len(model.module.queue) == 2048:
            model = second_stage(model, 131072)
            optimizer = torch.optim.SGD(model.module.query.parameters(), lr=0.01, momentum=0.9)
        logits = model(*views(pool[torch.randint(0, len(pool), (BATCH,))]))
        loss = nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tempo.report(rank)
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
