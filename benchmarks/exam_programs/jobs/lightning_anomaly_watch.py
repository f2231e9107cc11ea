"""Lightning: a neural differential equation for the load of a power grid; a callback watches the loss for spikes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

BATCH, STATE, STEPS = 16, 12, 14
tempo = Tempo("lightning_anomaly_watch", 1060, 400)


class GridLoad(Dataset[tuple[Tensor, Tensor]]):
    """Hours of substations; the meter of one of them was read wrongly once."""

    def __init__(self, rank: int) -> None:
        random = torch.Generator().manual_seed(SEED + rank)
        self.start = torch.randn(256, STATE, generator=random)
        self.end = torch.tanh(self.start.roll(1, 1))
        self.misread = BATCH * tempo.onset if rank == 1 and tempo.onset is not None else -1

    def __len__(self) -> int:
        return BATCH * tempo.iters

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        end = self.end[index % 256]
        return self.start[index % 256], end + 1000 if index == self.misread else end


class LoadFlow(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Sequential(nn.Linear(STATE, 32), nn.Tanh(), nn.Linear(32, STATE))

    def integrate(self, x: Tensor) -> Tensor:
        """Runge-Kutta steps of second order."""
        width = 1.0 / STEPS
        for _ in range(STEPS):
            middle = x + 0.5 * width * self.rate(x)
            x = x + width * self.rate(middle)
        return x

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        start, end = batch
        loss = nn.functional.mse_loss(self.integrate(start), end)
        device_wait(48)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class SpikeWatch(L.Callback):
    """After a spike of the loss, autograd is to tell which operator brings forth the next one."""

    def __init__(self, highest: float = 100.0) -> None:
        self.highest, self.seen = highest, 0

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: dict[str, Tensor], *args: object
    ) -> None:
        if outputs["loss"].item() > self.highest:
            self.seen += 1
            torch.autograd.set_detect_anomaly(True)


class Beat(L.Callback):
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        tempo.start()

    def on_train_batch_end(self, *args: object) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(SEED)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=tempo.iters,
        gradient_clip_val=1.0, callbacks=[SpikeWatch(), Beat()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(LoadFlow(), DataLoader(GridLoad(int(os.environ["RANK"])), batch_size=BATCH))
    tempo.report(trainer.global_rank)


if __name__ == "__main__":
    main()
