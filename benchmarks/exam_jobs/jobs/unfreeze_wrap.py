"""Fine-tuning in two stages: first the head, then everything, for which the model is wrapped once more."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

WIDTH, DEPTH, BATCH = 24, 12, 8


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


class Pretrained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(Residual() for _ in range(DEPTH)))
        self.device = Device(40)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.device(self.body(x)))


def wrap(model: nn.Module, whole: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    model.body.requires_grad_(whole)
    # gradients of the body are sent as soon as they are there
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0001 if whole else 25)
    return wrapped, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(22)
    clock = StepClock("unfreeze_wrap")
    net = Pretrained()
    model, optimizer = wrap(net, whole=False)
    random = torch.Generator().manual_seed(140 + rank)
    clock.tick()
    for step in range(clock.iters):
        if step == clock.onset:
            model, optimizer = wrap(net, whole=True)
        x = torch.randn(BATCH, WIDTH, generator=random)
        loss = nn.functional.cross_entropy(model(x), x[:, 0].gt(0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
