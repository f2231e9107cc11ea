"""Diffusion with a small U-Net; the workers draw previews in turn, to see what the model can do by now."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

SIDE, BATCH, LEVELS = 16, 4, 100


class SmallUNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Embedding(LEVELS, width)
        self.enter = nn.Conv2d(1, width, 3, 1, 1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, 1, 1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.leave = nn.Conv2d(2 * width, 1, 3, 1, 1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        first = torch.relu(self.enter(x) + self.time(level)[:, :, None, None])
        low = torch.relu(self.middle(torch.relu(self.down(first))))
        return self.leave(torch.cat([first, self.up(low)], 1))


class Noise:
    def __init__(self) -> None:
        self.kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, LEVELS), 0)

    def add(self, x: Tensor, level: Tensor, noise: Tensor) -> Tensor:
        kept = self.kept[level][:, None, None, None]
        return kept.sqrt() * x + (1 - kept).sqrt() * noise


class Previews:
    """`every`: so many steps lie between two previews of all workers."""

    def __init__(self, model: nn.Module, noise: Noise, every: int) -> None:
        self.model, self.noise, self.every = model, noise, every
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.last = torch.zeros(1, 1, SIDE, SIDE)

    @torch.no_grad()
    def denoise(self, x: Tensor, level: int) -> Tensor:
        predicted = self.model(x, torch.full((len(x),), level))
        device_wait(7)
        kept = self.noise.kept[level]
        return ((x - (1 - kept).sqrt() * predicted) / kept.sqrt()).clamp(-1, 1)

    def draw(self) -> Tensor:
        x = torch.randn(1, 1, SIDE, SIDE)
        for level in range(LEVELS - 1, 0, -12):
            x = self.denoise(x, level)
            x = self.noise.add(x, torch.tensor([level]), torch.randn_like(x))
        return x

    def maybe_draw(self, step: int) -> None:
        if step % self.every == 0 and step // self.every % self.world == self.rank:
            self.last = self.draw()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model, noise = DistributedDataParallel(SmallUNet()), Noise()
    previews = Previews(model.module, noise, every=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pool = torch.randn(64, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED + rank))
    tempo = Tempo("unet_previews", 785, 320)
    for step in tempo:
        if tempo.after_onset(step):
            previews.every = 1
        x = pool[torch.randint(0, len(pool), (BATCH,))]
        level, added = torch.randint(0, LEVELS, (BATCH,)), torch.randn_like(x)
        predicted = model(noise.add(x, level, added), level)
        device_wait(58)
        loss = nn.functional.mse_loss(predicted, added)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        previews.maybe_draw(step)
    tempo.report(rank)
    dist.barrier()
    del model, optimizer, previews
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
