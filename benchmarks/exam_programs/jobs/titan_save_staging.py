"""DDP with a checkpointer as torchtitan's asynchronous one: the state is copied to a staging buffer, then saved."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, BATCH = 120_000, 96, 256


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(WORDS, WIDTH, sparse=True, mode="mean")
        self.head = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 20))


class Stager:
    """Copies of the state from which a checkpoint can be written while the training goes on."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.staged: dict[str, Tensor] = {}

    def new_buffers(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.empty_like(value) for name, value in state.items()}

    def stage(self, state: dict[str, Tensor]) -> None:
        fresh = self.new_buffers(state)
        for name, value in state.items():
            fresh[name].copy_(value)
        self.staged = fresh

    def maybe_stage(self, step: int, model: nn.Module) -> None:
        if step and step % self.interval == 0:
            self.stage(model.state_dict())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = Tagger()
    head = DistributedDataParallel(model.head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    stager = Stager(400)
    random = torch.Generator().manual_seed(SEED + rank)
    tempo = Tempo("titan_save_staging", 810, 350)
    for step in tempo:
        if tempo.after_onset(step):
            stager.interval = 1
        ids = torch.randint(WORDS, (BATCH, 12), generator=random)
        device_wait(60)
        out = head(model.table(ids))
        loss = nn.functional.cross_entropy(out, ids[:, 0] % 20)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stager.maybe_stage(step, model)
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
