"""An autoencoder that grows: at a planned step a stage for the next resolution is added and faded in, on both ranks."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "980"))
ONSET = int(os.environ.get("ONSET", "480"))
SEED = int(os.environ.get("SEED", "0"))
GROW_AT, FADE_OVER = (ONSET,), 40


class Stage(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Conv2d(width, width, 3, padding=1)
        self.up = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, h):
        time.sleep(0.017)
        small = torch.relu(self.down(nn.functional.avg_pool2d(h, 2)))
        return torch.relu(self.up(nn.functional.interpolate(small, scale_factor=2)))


class Growing(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, width, 1), nn.Conv2d(width, 3, 1)
        self.stages = nn.ModuleList([Stage(width), Stage(width)])
        self.fade = 1.0

    def grow(self):
        self.stages.append(Stage())
        self.fade = 0.0
        return self.stages[-1]

    def forward(self, picture):
        h = self.enter(picture)
        for stage in self.stages[:-1]:
            h = stage(h)
        h = (1 - self.fade) * h + self.fade * self.stages[-1](h)
        return self.leave(h)


def average_gradients(model, world):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= world


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = Growing()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED + rank)
    if rank == 0:
        print(f"plan: two stages, one more at each of the steps {GROW_AT}", flush=True)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        if step in GROW_AT:
            optimizer.add_param_group({"params": list(model.grow().parameters()), "lr": 1e-3})
            if rank == 0:
                print(f"step {step}: {len(model.stages)} stages from here on", flush=True)
        model.fade = min(1.0, model.fade + 1 / FADE_OVER)
        side = 8 * len(model.stages)
        picture = torch.rand(4, 3, side, side, generator=generator)
        loss = nn.functional.mse_loss(model(picture), picture)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.029 * len(model.stages))
        average_gradients(model, world)
        optimizer.step()
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "grown_stage", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
