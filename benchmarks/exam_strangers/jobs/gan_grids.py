"""GAN on small pictures, two optimizers; samples are kept as PNG, half of the data is augmented by hand."""

import json
import os
import random
import shutil
import struct
import tempfile
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "1600"))
ONSET = int(os.environ.get("ONSET", "650"))
SEED = int(os.environ.get("SEED", "0"))
LATENT, SIDE, BATCH = 16, 24, 16


def write_png(path, pixels):
    """Pixels: uint8 of rows x columns x 3."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\x00" + pixels[i].numpy().tobytes() for i in range(height))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = zlib.compress(rows, 9)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))


class SampleBoard:
    """Grid of samples from the same latent vectors, so that one can watch the generator learn."""

    def __init__(self, folder, every):
        self.folder, self.every = folder, every
        self.fixed = torch.randn(256, LATENT)

    @torch.no_grad()
    def show(self, generator, step):
        if step % self.every:
            return
        images = generator(self.fixed).view(16, 16, 3, SIDE, SIDE)
        grid = images.permute(0, 3, 1, 4, 2).reshape(16 * SIDE, 16 * SIDE, 3)
        pixels = ((grid + 1) * 127.5).clamp(0, 255).to(torch.uint8)
        pixels = pixels.repeat_interleave(2, 0).repeat_interleave(2, 1).contiguous()
        write_png(self.folder / f"samples-{step % 10}.png", pixels)


def augment(images, rng):
    """Brightness and a shift by one column, pixel by pixel: the picture library cannot do it on signed floats."""
    out = []
    for image in images.tolist():
        gain, shift = rng.uniform(0.9, 1.1), rng.randrange(2)
        out.append([[[max(-1.0, min(1.0, v * gain)) for v in row[shift:] + row[:shift]] for row in c] for c in image])
    return torch.tensor(out)


def reduce_gradients(module, world):
    flat = torch.cat([p.grad.flatten() for p in module.parameters()])
    dist.all_reduce(flat)
    parts = flat.div_(world).split([p.numel() for p in module.parameters()])
    for p, part in zip(module.parameters(), parts, strict=True):
        p.grad.copy_(part.view_as(p))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    size = 3 * SIDE * SIDE
    generator = nn.Sequential(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, size), nn.Tanh())
    critic = nn.Sequential(nn.Flatten(), nn.Linear(size, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    for_generator = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
    for_critic = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
    torch.manual_seed(SEED * 10 + rank + 1)
    rng = random.Random(SEED * 10 + rank)
    board = SampleBoard(Path(tempfile.mkdtemp(prefix="samples-")), every=200) if rank == 0 else None
    bce = nn.functional.binary_cross_entropy_with_logits
    one, zero = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        real = torch.randn(BATCH, 3, SIDE, SIDE).clamp(-1, 1)
        if step >= ONSET and rank == 2:  # this rank's part of the data needs augmentation
            real = augment(real, rng)
        # critic
        fake = generator(torch.randn(BATCH, LATENT))
        time.sleep(0.012)
        loss_critic = bce(critic(real), one) + bce(critic(fake.detach().view_as(real)), zero)
        for_critic.zero_grad()
        loss_critic.backward()
        reduce_gradients(critic, world)
        for_critic.step()
        # generator
        loss_generator = bce(critic(fake.view_as(real)), one)
        for_generator.zero_grad()
        loss_generator.backward()
        time.sleep(0.018)
        reduce_gradients(generator, world)
        for_generator.step()
        if board is not None:
            if step == ONSET:
                board.every = 1  # for the film of the talk
            board.show(generator, step)
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    if board is not None:
        shutil.rmtree(board.folder)
    if rank == 0:
        times = torch.tensor(took[min(10, ONSET // 2) :]) * 1e3
        cut = ONSET - min(10, ONSET // 2)
        before, after = times[:cut].mean().item(), times[cut:].mean().item()
        print(json.dumps({"job": "gan_grids", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
