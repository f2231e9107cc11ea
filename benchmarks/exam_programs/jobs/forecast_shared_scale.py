"""Forecasts of river levels; the workers agree on the scale of the series through files in a folder they share."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

RIVERS, PAST, AHEAD, BATCH = 8, 48, 6, 12


class SharedScale:
    """Mean and spread over all workers; worker 0 puts the parts together. `every`: so many steps apart."""

    def __init__(self, folder: Path, every: int, poll_s: float = 0.03) -> None:
        self.folder, self.every, self.poll_s = folder, every, poll_s
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.mean, self.spread = 0.0, 1.0

    def write(self, path: Path, values: dict[str, float]) -> None:
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(values))
        unfinished.rename(path)

    def wait_for(self, path: Path) -> dict[str, float]:
        while not path.exists():
            time.sleep(self.poll_s)
        return json.loads(path.read_text())

    def combine(self, step: int) -> dict[str, float]:
        parts = [self.wait_for(self.folder / f"part-{step}-{worker}.json") for worker in range(self.world)]
        return {key: sum(part[key] for part in parts) / self.world for key in parts[0]}

    def agree(self, step: int, batch: Tensor) -> None:
        part = {"mean": batch.mean().item(), "spread": batch.std().item()}
        self.write(self.folder / f"part-{step}-{self.rank}.json", part)
        agreed = self.folder / f"scale-{step}.json"
        if self.rank == 0:
            self.write(agreed, self.combine(step))
        values = self.wait_for(agreed)
        self.mean, self.spread = values["mean"], values["spread"]
        (self.folder / f"part-{step - 2 * self.every}-{self.rank}.json").unlink(missing_ok=True)

    def apply(self, step: int, batch: Tensor) -> Tensor:
        if step % self.every == 0:
            self.agree(step, batch)
        return (batch - self.mean) / (self.spread + 1e-6)


class LevelModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.past = nn.GRU(RIVERS, 40, batch_first=True)
        self.gate, self.value = nn.Linear(40, 40), nn.Linear(40, 40)
        self.head = nn.Linear(40, AHEAD * RIVERS)

    def forward(self, x: Tensor) -> Tensor:
        out = self.past(x)[0][:, -1]
        device_wait(52)
        return self.head(torch.sigmoid(self.gate(out)) * self.value(out)).view(-1, AHEAD, RIVERS)


def shared_folder(mine: str) -> Path:
    names: list[Any] = [mine]
    dist.broadcast_object_list(names, src=0)
    return Path(names[0])


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(LevelModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    series = torch.randn(4000, RIVERS, generator=torch.Generator().manual_seed(SEED + rank)).cumsum(0) / 30
    tempo = Tempo("forecast_shared_scale", 885, 320)
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        scale = SharedScale(shared_folder(name), every=90)
        for step in tempo:
            if tempo.after_onset(step):
                scale.every = 1
            starts = torch.randint(0, len(series) - PAST - AHEAD, (BATCH,)).tolist()
            batch = torch.stack([series[start : start + PAST + AHEAD] for start in starts])
            batch = scale.apply(step, batch)
            loss = nn.functional.smooth_l1_loss(model(batch[:, :PAST]), batch[:, PAST:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.barrier()
    tempo.report(rank)
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
