"""Regression without batch normalization: adaptive clipping per unit, gradients averaged by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

INPUTS, WIDTH, DEPTH, BATCH = 48, 96, 5, 64


def build() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(INPUTS, WIDTH), nn.SiLU(), Device(35)]
    for _ in range(DEPTH - 1):
        layers += [nn.Linear(WIDTH, WIDTH), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4))


def clip_units(parameters: Iterable[nn.Parameter], ratio: float = 0.02, least: float = 1e-3) -> int:
    """Gradient norm of each unit at most `ratio` times the norm of its weights."""
    clipped = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        for weight, gradient in zip(parameter.detach(), parameter.grad, strict=True):
            limit = ratio * max(weight.norm().item(), least)
            size = gradient.norm().item()
            if size > limit:
                gradient.mul_(limit / size)
                clipped += 1
    return clipped


def mean_over_workers(model: nn.Module) -> None:
    gradients = [p.grad for p in model.parameters()]
    flat = torch._utils._flatten_dense_tensors(gradients)
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    for gradient, averaged in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
        gradient.copy_(averaged)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    clock = StepClock("unit_clip")
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    random = torch.Generator().manual_seed(30 + rank)
    clock.tick()
    for step in range(clock.iters):
        x = torch.randn(BATCH, INPUTS, generator=random)
        loss = nn.functional.mse_loss(model(x), torch.stack([x[:, :9].sum(1), x[:, 1], x[:, 2], x[:, 3] ** 2], dim=1))
        optimizer.zero_grad()
        loss.backward()
        mean_over_workers(model)
        if clock.late(step):  # the learning rate is high from here on
            clip_units(model.parameters())
        optimizer.step()
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
