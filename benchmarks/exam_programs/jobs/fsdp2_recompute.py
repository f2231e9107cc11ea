"""FSDP2: a language model whose blocks can throw their activations away and compute them again in the backward."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, LENGTH, BATCH = 240, 48, 32, 4


class GatedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.save_memory = False

    def compute(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        mixed = self.value(y).cumsum(1) / torch.arange(1, y.shape[1] + 1)[:, None]
        device_wait(18)
        return x + self.out(torch.sigmoid(self.gate(y)) * mixed)

    def forward(self, x: Tensor) -> Tensor:
        if self.save_memory:
            return checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)


class GatedLm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList(GatedBlock() for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class MemoryBudget:
    """Lets blocks recompute as soon as the reserve is used up."""

    def __init__(self, model: GatedLm) -> None:
        self.model = model

    def tighten(self) -> None:
        for block in self.model.blocks:
            block.save_memory = True


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    model = GatedLm()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    budget = MemoryBudget(model)
    text = torch.randint(WORDS, (64, LENGTH + 1), generator=torch.Generator().manual_seed(SEED + rank))
    tempo = Tempo("fsdp2_recompute", 760, 260)
    for step in tempo:
        if tempo.after_onset(step):
            budget.tighten()
        ids = text[torch.randint(0, 64, (BATCH,))]
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        device_wait(18)
        optimizer.step()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
