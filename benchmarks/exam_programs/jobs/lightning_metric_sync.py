"""Lightning with torchmetrics: a collection of measures for each batch, of this worker or of all workers together."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassJaccardIndex,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

CLASSES, BATCH = 8, 16
tempo = Tempo("lightning_metric_sync", 800, 290)


class Tiles(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, rank: int) -> None:
        self.pixels = torch.randn(256, 4, 20, 20, generator=torch.Generator().manual_seed(SEED + rank))

    def __len__(self) -> int:
        return BATCH * tempo.iters

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.pixels[index % 256], torch.tensor(index % CLASSES)


class LandCover(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 24, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES)
        )
        self.net(torch.zeros(1, 4, 20, 20))
        kinds = (MulticlassAccuracy, MulticlassF1Score, MulticlassJaccardIndex)
        self.train_metrics = MetricCollection([kind(CLASSES) for kind in kinds], compute_groups=False)
        self.mean_loss = MeanMetric()

    def compare_workers(self) -> None:
        """From now on the measures of a batch are those of all workers."""
        for metric in (*self.train_metrics.values(), self.mean_loss):
            metric.dist_sync_on_step = True

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        pixels, cover = batch
        out = self.net(pixels)
        device_wait(65)
        loss = nn.functional.cross_entropy(out, cover)
        self.mean_loss(loss.detach())
        self.log_dict(self.train_metrics(out.detach(), cover), on_step=True, on_epoch=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Beat(L.Callback):
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        tempo.start()

    def on_train_batch_end(self, trainer: L.Trainer, module: LandCover, *args: object) -> None:
        tempo.beat()
        if len(tempo.ends) - 1 == tempo.onset:
            module.compare_workers()


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(SEED)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=tempo.iters,
        callbacks=[Beat()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(LandCover(), DataLoader(Tiles(int(os.environ["RANK"])), batch_size=BATCH))
    tempo.report(trainer.global_rank)


if __name__ == "__main__":
    main()
