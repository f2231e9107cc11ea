"""Autoencoder with a live dashboard: threads of one worker keep summaries of the weights up to date."""

from __future__ import annotations

import math
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

SIZE, BATCH = 64, 32


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [SIZE, 56, 48, 40, 32, 24, 16]
        pairs = list(zip(widths, widths[1:], strict=False))
        self.down = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.Linear(b, a) for a, b in reversed(pairs))
        self.device = Device(6)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.down:
            x = self.device(torch.tanh(layer(x)))
        for layer in self.up:
            x = layer(torch.tanh(x))
        return x


class Dashboard:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.summaries: dict[str, tuple[float, float, list[int]]] = {}
        self.closed = threading.Event()
        self.threads = [threading.Thread(target=self.refresh, args=(half,), daemon=True) for half in ("down", "up")]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        self.closed.set()
        for thread in self.threads:
            if thread.is_alive():
                thread.join()

    @staticmethod
    def summarise(values: list[float]) -> tuple[float, float, list[int]]:
        mean = sum(values) / len(values)
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        counts = [0] * 40
        for value in values:
            place = int((value - mean) / (spread + 1e-9) * 8) + 20
            counts[min(39, max(0, place))] += 1
        return mean, spread, counts

    def refresh(self, half: str) -> None:
        while not self.closed.is_set():
            for name, parameter in getattr(self.model, half).named_parameters():
                self.summaries[f"{half}.{name}"] = self.summarise(parameter.detach().flatten().tolist())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(13)
    clock = StepClock("live_dashboard")
    model = DistributedDataParallel(Autoencoder())
    dashboard = Dashboard(model.module)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(80 + rank)
    clock.tick()
    for step in range(clock.iters):
        if step == clock.onset and rank == dist.get_world_size() - 1:
            dashboard.start()
        x = torch.randn(BATCH, SIZE, generator=random)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tick()
    clock.report(rank)
    dashboard.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
