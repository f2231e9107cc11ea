"""Physics net with an autograd function of its own; a watch for NaNs looks at every number, from the start."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402


class NanWatch:
    """Left in since the last divergence."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.seen = 0

    def check_numbers(self, where: str, values: Tensor) -> None:
        for number in values.detach().flatten().tolist():
            if not math.isfinite(number):
                raise FloatingPointError(f"{number} in {where}")
            if number > self.largest:
                self.largest = number
            self.seen += 1


WATCH = NanWatch()


class SineGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, frequency: Tensor) -> Tensor:
        ctx.save_for_backward(x, frequency)
        y = torch.sin(frequency * x) * x
        WATCH.check_numbers("gate", y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, frequency = ctx.saved_tensors
        wave, slope = torch.sin(frequency * x), torch.cos(frequency * x)
        return grad * (wave + frequency * x * slope), (grad * x * x * slope).sum(0)


class WaveNet(nn.Module):
    """Field of a wave equation at points of space and time."""

    def __init__(self, depth: int = 8, width: int = 48) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.frequencies = nn.ParameterList(torch.ones(width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, points: Tensor) -> Tensor:
        x = self.first(points)
        for layer, frequency in zip(self.layers, self.frequencies, strict=True):
            x = layer(SineGate.apply(x, frequency))
        return self.last(x)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = WaveNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9995)
    random = torch.Generator().manual_seed(SEED + rank)
    laps = Laps("nan_watch", 1200, 0)
    for _ in laps:
        points = torch.rand(900, 3, generator=random)
        goal = torch.sin(6 * points[:, :1]) * torch.cos(4 * points[:, 2:])
        loss = (model(points) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        kernel(25)
        vector = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
        dist.all_reduce(vector)
        nn.utils.vector_to_parameters(vector / dist.get_world_size(), [p.grad for p in model.parameters()])
        optimizer.step()
        scheduler.step()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
