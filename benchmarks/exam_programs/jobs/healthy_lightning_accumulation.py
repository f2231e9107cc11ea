"""Lightning: an auto-encoder with gradient accumulation over two batches, validation, checkpoints, loader processes."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

BATCH = 12
tempo = Tempo("healthy_lightning_accumulation", 1000, None)


class Spectra(Dataset[Tensor]):
    def __init__(self, seed: int, count: int) -> None:
        self.values = torch.randn(256, 120, generator=torch.Generator().manual_seed(seed))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        noise = torch.randn(120, generator=torch.Generator().manual_seed(index))
        return self.values[index % 256] + 0.05 * noise


class Autoencoder(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(120, 64), nn.GELU(), nn.Linear(64, 12))
        self.decoder = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 120))

    def training_step(self, batch: Tensor, number: int) -> Tensor:
        loss = nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)
        device_wait(72)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Tensor, number: int) -> None:
        device_wait(25)
        self.log("val_loss", nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch), sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 60)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Beat(L.Callback):
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        tempo.start()

    def on_train_batch_end(self, *args: object) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(SEED)
    rank = int(os.environ["RANK"])
    with tempfile.TemporaryDirectory(prefix="spectra-") as name:
        keep = ModelCheckpoint(name, every_n_train_steps=100, save_top_k=1, monitor=None)
        trainer = L.Trainer(
            accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=tempo.iters // 2,
            accumulate_grad_batches=2, val_check_interval=120, check_val_every_n_epoch=None, num_sanity_val_steps=0,
            callbacks=[keep, LearningRateMonitor("step"), Beat()], logger=CSVLogger(name), log_every_n_steps=20,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        train = DataLoader(Spectra(SEED + rank, BATCH * tempo.iters), BATCH, num_workers=1)
        trainer.fit(Autoencoder(), train, DataLoader(Spectra(SEED + 9, 5 * BATCH), BATCH))
        tempo.report(trainer.global_rank)


if __name__ == "__main__":
    main()
