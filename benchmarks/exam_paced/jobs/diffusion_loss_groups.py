"""Denoising diffusion; the loss by range of noise levels is averaged over the workers that have met the range."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

LEVELS, RANGES, BATCH = 400, 4, 12


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
        self.down = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1))
        self.up = nn.ConvTranspose2d(64, 3, 4, stride=2, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(16) * (-math.log(1e4) / 16))
        when = self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        low = self.down(x)
        middle = low + self.middle(low + when)
        kernel(42)
        return self.up(torch.cat([low, middle], 1))


class LossByRange:
    def __init__(self) -> None:
        self.sums = torch.zeros(RANGES)

    def add(self, losses: Tensor, levels: Tensor) -> None:
        place = torch.div(levels * RANGES, LEVELS, rounding_mode="floor").long()
        self.sums += torch.zeros(RANGES).index_add(0, place, losses)

    def reduce_plain(self) -> None:
        dist.all_reduce(self.sums)

    def reduce_by_members(self) -> None:
        members = list(range(dist.get_world_size()))
        for i in range(RANGES):
            group = dist.new_group(members)
            part = self.sums[i : i + 1].clone()
            dist.all_reduce(part, group=group)
            self.sums[i] = part[0]
            dist.destroy_process_group(group)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Denoiser())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.03, LEVELS), 0)
    pictures = torch.randn(256, 3, 24, 24)
    laps = Laps("diffusion_loss_groups", 960, 540)
    torch.manual_seed(SEED + rank)
    for step in laps:
        x = pictures[torch.randint(0, 256, (BATCH,))]
        levels = torch.randint(0, LEVELS, (BATCH,))
        noise = torch.randn_like(x)
        share = kept[levels][:, None, None, None]
        guess = model(share.sqrt() * x + (1 - share).sqrt() * noise, levels.float())
        losses = (guess - noise).pow(2).mean((1, 2, 3))
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        table = LossByRange()
        table.add(losses.detach(), levels)
        if laps.late(step):
            table.reduce_by_members()
        elif step % 10 == 9:
            table.reduce_plain()
    laps.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
