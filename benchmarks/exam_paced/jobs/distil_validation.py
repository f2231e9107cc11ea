"""Distillation of a teacher into a student with EMA weights; validation gets far too frequent."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402


@dataclass
class Plan:
    validate_every: int = 120
    temperature: float = 3.0
    decay: float = 0.99


def convnet(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, 2, 1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 30))


class Distiller:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.teacher = convnet(24, 3).eval().requires_grad_(False)
        self.student = DistributedDataParallel(convnet(12, 2))
        self.average = copy.deepcopy(self.student.module).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=1e-3)
        self.held_out = torch.randn(480, 1, 24, 24)

    def train_step(self, x: Tensor) -> None:
        t = self.plan.temperature
        with torch.no_grad():
            goal = (self.teacher(x) / t).softmax(-1)
        kernel(40)
        loss = nn.functional.kl_div((self.student(x) / t).log_softmax(-1), goal, reduction="batchmean")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.parameters()), list(self.student.module.parameters()), 1 - self.plan.decay
            )

    @torch.no_grad()
    def validate(self) -> float:
        agree = torch.zeros(())
        for x in self.held_out.split(48):
            agree += (self.teacher(x).argmax(-1) == self.average(x).argmax(-1)).sum()
        dist.all_reduce(agree)
        return float(agree) / len(self.held_out) / dist.get_world_size()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    plan = Plan()
    distiller = Distiller(plan)
    torch.manual_seed(SEED + 7 * rank)
    laps = Laps("distil_validation", 1340, 600)
    for step in laps:
        if laps.late(step):
            plan.validate_every = 2  # meant as epochs
        distiller.train_step(torch.randn(16, 1, 24, 24))
        if (step + 1) % plan.validate_every == 0:
            distiller.validate()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
