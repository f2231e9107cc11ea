"""Vision transformer on small pictures; from the onset attention is "sliced" to save memory."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

HEADS, WIDTH, BATCH = 6, 96, 12


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.sliced = False

    def sliced_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pictures = []
        for i in range(q.shape[0]):
            heads = []
            for h in range(HEADS):
                scores = q[i, h] @ k[i, h].t() / q.shape[-1] ** 0.5
                heads.append(scores.softmax(-1) @ v[i, h])
            pictures.append(torch.stack(heads))
        return torch.stack(pictures)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = self.sliced_attention(q, k, v) if self.sliced else F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.position = nn.Parameter(torch.zeros(1, 64, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 20)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patch(pictures).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        kernel(45)
        return self.head(x.mean(1))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(ViT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    random = torch.Generator().manual_seed(100 * SEED + rank)
    laps = Laps("vit_head_loop", 810, 330)
    for step in laps:
        if laps.late(step):
            for block in model.module.blocks:
                block.attention.sliced = True
        pictures = torch.randn(BATCH, 3, 32, 32, generator=random)
        labels = torch.randint(0, 20, (BATCH,), generator=random)
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
