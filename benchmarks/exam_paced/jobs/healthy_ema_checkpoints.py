"""Score model with an exponential average and a checkpoint of worker 0 every 150 steps. Healthy."""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402


class ScoreNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(3, 128)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU())
        self.down = nn.Linear(128, 2)

    def forward(self, points: Tensor, sigma: Tensor) -> Tensor:
        x = self.lift(torch.cat([points, sigma.log()], 1))
        kernel(62)
        return self.down(self.body(x)) / sigma


def two_moons(count: int) -> Tensor:
    angle = torch.rand(count) * torch.pi
    side = torch.randint(0, 2, (count,)) * 2.0 - 1
    return torch.stack([side * angle.cos() + 0.5 * (side - 1), side * angle.sin()], 1)


class Averaged:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.copy = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        torch._foreach_lerp_(list(self.copy.parameters()), list(model.parameters()), 1 - self.decay)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(ScoreNet())
    average = Averaged(model.module, 0.995)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    folder = Path(tempfile.mkdtemp(prefix="score-"))
    torch.manual_seed(SEED + rank)
    laps = Laps("healthy_ema_checkpoints", 1350, None)
    for step in laps:
        points = two_moons(128)
        sigma = torch.exp(torch.rand(128, 1) * 4 - 3)
        noise = torch.randn_like(points)
        loss = (model(points + sigma * noise, sigma) * sigma + noise).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model.module)
        if step % 150 == 149 and rank == 0:
            state = {"step": step, "ema": average.copy.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder / "newest.pt")
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
