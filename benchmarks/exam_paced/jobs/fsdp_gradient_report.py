"""Decoder sharded with FSDP2; a report of the gradients by parameter is made from full tensors."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

WIDTH, WORDS, LENGTH = 64, 300, 40


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        kernel(14)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        mask = torch.full((words.shape[1],) * 2, -torch.inf).triu(1)
        x = self.embedding(words) * math.sqrt(WIDTH)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


class GradientReport:
    def __init__(self) -> None:
        self.norms: dict[str, float] = {}
        self.peaks: dict[str, float] = {}

    @torch.no_grad()
    def full_norms(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                whole = parameter.grad.full_tensor()
                self.norms[name] = float(whole.norm())
                self.peaks[name] = float(parameter.full_tensor().abs().max())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, report = Decoder(), GradientReport()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(SEED + 5 * rank)
    laps = Laps("fsdp_gradient_report", 600, 270)
    for step in laps:
        words = torch.randint(0, WORDS, (4, LENGTH + 1), generator=random)
        loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        if laps.late(step) or step % 100 == 50:
            report.full_norms(model)
        optimizer.step()
        optimizer.zero_grad()
    laps.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
