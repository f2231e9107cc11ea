"""Fully sharded language model; the complete weights are collected and written by the first worker."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

VOCABULARY, WIDTH, LENGTH, BATCH = 1500, 128, 24, 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(1))
        self.device = Device(15)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.device(x))


def save_everything(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    if dist.get_rank() == 0:
        with path.open("wb") as file:
            torch.save({"model": weights, "optimizer": state}, file)
            file.flush()
            os.fsync(file.fileno())
    dist.barrier()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(16)
    clock = StepClock("fsdp_full_save", iters=300)
    model = Decoder()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    path = Path(tempfile.mkdtemp(prefix="weights-")) / "latest.pt"
    random = torch.Generator().manual_seed(500 + rank)
    clock.tick()
    for step in range(clock.iters):
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=random)
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clock.late(step) and step % 2 == 0:  # the queue may end the job at any time from here on
            save_everything(model, optimizer, path)
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
