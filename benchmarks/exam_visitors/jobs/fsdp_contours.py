"""Outlines of cells, sharded with fully_shard; the last rank now and then measures how far outlines are apart."""

import json
import math
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

ITERS = int(os.environ.get("ITERS", "960"))
ONSET = int(os.environ.get("ONSET", "470"))
SEED = int(os.environ.get("SEED", "0"))
BATCH, POINTS = 6, 450


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h):
        time.sleep(0.011)
        return h + self.down(nn.functional.gelu(self.up(h)))


class Outliner(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.leave = nn.Linear(width, 32)

    def forward(self, picture):
        h = self.enter(picture)
        for block in self.blocks:
            h = block(h)
        return self.leave(h)


def outline(radii):
    """Points on a closed curve whose radius is given at 32 angles."""
    angles = np.linspace(0, 2 * math.pi, POINTS, endpoint=False)
    radius = 1 + np.interp(angles, np.linspace(0, 2 * math.pi, len(radii)), radii)
    return np.stack((radius * np.cos(angles), radius * np.sin(angles)), axis=1)


def hausdorff(one, other):
    apart = np.sqrt(((one[:, None, :] - other[None, :, :]) ** 2).sum(-1))
    return max(np.percentile(apart.min(0), 95), np.percentile(apart.min(1), 95))


class ContourMetric:
    """Coarse in the beginning: each 50th step. In the second phase each step counts."""

    def __init__(self, detail_from):
        self.detail_from, self.mean = detail_from, 0.0

    def update(self, step, predicted, wanted):
        if step % (1 if step >= self.detail_from else 50):
            return
        predicted, wanted = predicted.detach().numpy(), wanted.numpy()
        far = [hausdorff(outline(p), outline(w)) for p, w in zip(predicted, wanted, strict=True)]
        self.mean = 0.9 * self.mean + 0.1 * float(np.mean(far))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    mesh = torch.distributed.init_device_mesh("cpu", (world,))
    model = Outliner()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED + rank)
    metric = ContourMetric(ONSET) if rank == world - 1 else None
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        picture = torch.randn(BATCH, 64, generator=generator)
        wanted = 0.3 * torch.tanh(picture[:, :32] - picture[:, 32:])
        predicted = model(picture)
        loss = nn.functional.mse_loss(predicted, wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.04)
        optimizer.step()
        if metric is not None:
            metric.update(step, predicted, wanted)
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "fsdp_contours", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
