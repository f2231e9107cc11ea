"""Multilayer perceptron with a preconditioning optimizer of its own; its roots get computed in each step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402


def inverse_root(matrix: Tensor, power: int = 4) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix + 1e-4 * torch.eye(len(matrix)))
    return vectors @ torch.diag(values.clamp_min(1e-6) ** (-1 / power)) @ vectors.t()


class Shampoo(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, root_every: int) -> None:
        super().__init__(parameters, {"lr": lr, "root_every": root_every})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, group["lr"], group["root_every"])

    def update(self, p: nn.Parameter, lr: float, root_every: int) -> None:
        if p.ndim != 2:
            p.add_(p.grad, alpha=-lr)
            return
        state: dict[str, Any] = self.state[p]
        if not state:
            state["count"] = 0
            state["left"], state["right"] = torch.eye(p.shape[0]), torch.eye(p.shape[1])
        state["left"].lerp_(p.grad @ p.grad.t(), 0.05)
        state["right"].lerp_(p.grad.t() @ p.grad, 0.05)
        if state["count"] % root_every == 0:
            state["left_root"] = inverse_root(state["left"])
            state["right_root"] = inverse_root(state["right"])
        state["count"] += 1
        p.add_(state["left_root"] @ p.grad @ state["right_root"], alpha=-lr)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Linear(288, 288), nn.Tanh(), nn.Linear(288, 288), nn.Tanh(), nn.Linear(288, 288))
    model = DistributedDataParallel(net)
    optimizer = Shampoo(model.parameters(), lr=0.01, root_every=100)
    random = torch.Generator().manual_seed(SEED + rank)
    laps = Laps("shampoo_roots", 1290, 540)
    for step in laps:
        if laps.late(step):
            for group in optimizer.param_groups:
                group["root_every"] = 1
        x = torch.randn(64, 288, generator=random)
        y = model(x)
        kernel(45)
        loss = (y - x.sin()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
