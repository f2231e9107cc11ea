"""Variational autoencoder; the first worker hands its numbers to a thread that writes them to a file."""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

SIZE, HIDDEN, BATCH = 96, 12, 24
PATIENCE = timedelta(seconds=int(os.environ.get("PATIENCE", "60")))


class EventWriter:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: queue.Queue[dict[str, object] | None] = queue.Queue(maxsize=4)
        self.thread = threading.Thread(target=self.write_all, name="events", daemon=True)
        self.thread.start()

    def add(self, **values: object) -> None:
        self.events.put(values)

    def write_all(self) -> None:
        with self.path.open("w") as file:
            while (event := self.events.get()) is not None:
                file.write(json.dumps(event) + "\n")

    def close(self) -> None:
        self.events.put(None)
        self.thread.join()


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIZE, 64), nn.ReLU(), nn.Linear(64, 2 * HIDDEN))
        self.device = Device(30)
        self.decoder = nn.Sequential(nn.Linear(HIDDEN, 64), nn.ReLU(), nn.Linear(64, SIZE))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.device(self.encoder(x)).chunk(2, dim=1)
        divergence = 0.5 * (mean**2 + spread.exp() - spread - 1).sum(dim=1).mean()
        return self.decoder(mean + torch.randn_like(mean) * (spread / 2).exp()), divergence


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank = dist.get_rank()
    torch.manual_seed(26)
    clock = StepClock("event_writer")
    writer = EventWriter(Path(tempfile.mkdtemp(prefix="events-")) / "events.jsonl") if rank == 0 else None
    model = DistributedDataParallel(Autoencoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(220 + rank)
    clock.tick()
    for step in range(clock.iters):
        x = torch.randn(BATCH, SIZE, generator=random)
        restored, divergence = model(x)
        loss = nn.functional.mse_loss(restored, x) + 0.01 * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if writer:
            # the divergence is of interest once it has grown
            extra = {"divergence": divergence.detach()} if clock.late(step) else {}
            writer.add(step=step, loss=loss.item(), **extra)
        clock.tick()
    if writer:
        writer.close()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
