"""Lightning: outlines of cells; a callback lets validation come closer together once the model is nearly done."""

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

SIDE, BATCH = 32, 6
tempo = Tempo("lightning_validation_rush", 890, 320)


class Cells(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, seed: int, count: int) -> None:
        self.pixels = torch.randn(128, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pixels = self.pixels[index % 128]
        return pixels, (pixels > 0.5).float()


class Outlines(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(24, 12, 2, 2), nn.ReLU(), nn.ConvTranspose2d(12, 1, 2, 2))

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        pixels, outline = batch
        return nn.functional.binary_cross_entropy_with_logits(self.up(self.down(pixels)), outline)

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        loss = self.loss(batch)
        device_wait(55)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        device_wait(20)
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class CloserLook(L.Callback):
    """The best model shall not be missed: validation every other batch from then on."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: object) -> None:
        if tempo.after_onset(len(tempo.ends)):
            trainer.val_check_batch = 2


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
        val_check_interval=160, check_val_every_n_epoch=None, num_sanity_val_steps=0,
        callbacks=[CloserLook(), Beat()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    train = DataLoader(Cells(SEED + int(os.environ["RANK"]), BATCH * tempo.iters), BATCH)
    trainer.fit(Outlines(), train, DataLoader(Cells(SEED + 7, 4 * BATCH), BATCH))
    tempo.report(trainer.global_rank)


if __name__ == "__main__":
    main()
