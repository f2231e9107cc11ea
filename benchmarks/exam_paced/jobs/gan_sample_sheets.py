"""GAN with two optimizers; from the start worker 0 writes a sheet of samples as PNG after each step."""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

NOISE, BATCH = 32, 16


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_sheet(path: Path, pictures: Tensor, across: int = 8, zoom: int = 7) -> None:
    """Grid of grey pictures, compressed as hard as can be."""
    count, _, side, _ = pictures.shape
    grid = pictures.view(count // across, across, side, side).permute(0, 2, 1, 3)
    grid = grid.reshape(count // across * side, across * side)
    grid = grid.repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)
    bytes_ = ((grid + 1) * 127.5).clamp(0, 255).byte()
    rows = b"".join(b"\0" + bytes(row.tolist()) for row in bytes_)
    height, width = bytes_.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(rows, 9)) + png_chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rise = nn.Linear(NOISE, 32 * 16)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.up(self.rise(z).view(-1, 32, 4, 4))


class Critic(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(512, 1),
        )  # fmt: skip


class Gan:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.generator = DistributedDataParallel(Generator())
        self.critic = DistributedDataParallel(Critic())
        self.g_step = torch.optim.Adam(self.generator.parameters(), 2e-4, (0.5, 0.99))
        self.c_step = torch.optim.Adam(self.critic.parameters(), 2e-4, (0.5, 0.99))
        self.fixed = torch.randn(64, NOISE)

    def train_critic(self, real: Tensor) -> None:
        with torch.no_grad():
            fake = self.generator(torch.randn(BATCH, NOISE))
        scores = self.critic(torch.cat([real, fake]))
        kernel(18)
        self.c_step.zero_grad()
        (nn.functional.relu(1 - scores[:BATCH]).mean() + nn.functional.relu(1 + scores[BATCH:]).mean()).backward()
        self.c_step.step()

    def train_generator(self) -> None:
        self.critic.module.requires_grad_(False)
        scores = self.critic.module(self.generator(torch.randn(BATCH, NOISE)))
        kernel(18)
        self.g_step.zero_grad()
        (-scores.mean()).backward()
        self.g_step.step()
        self.critic.module.requires_grad_(True)

    @torch.no_grad()
    def show(self, path: Path) -> None:
        if self.rank == 0:
            write_sheet(path, self.generator.module(self.fixed))
        dist.barrier()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    gan = Gan(rank)
    folder = Path(tempfile.mkdtemp(prefix="sheets-"))
    torch.manual_seed(SEED + rank)
    laps = Laps("gan_sample_sheets", 900, 0)
    for _ in laps:
        gan.train_critic(torch.rand(BATCH, 1, 16, 16) * 2 - 1)
        gan.train_generator()
        gan.show(folder / "newest.png")
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
