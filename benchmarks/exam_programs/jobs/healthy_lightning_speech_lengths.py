"""Lightning: spoken digits of different length; gradients are clipped, validation and the best checkpoints are kept."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

BANDS, DIGITS, BATCH = 20, 10, 8
tempo = Tempo("healthy_lightning_speech_lengths", 1350, None)


class SpokenDigits(Dataset[tuple[Tensor, int]]):
    def __init__(self, seed: int, count: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.sound = torch.randn(256, 60, BANDS, generator=random)
        self.lengths = torch.randint(16, 61, (256,), generator=random).tolist()
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        place = index * 37 % 256
        return self.sound[place, : self.lengths[place]], place % DIGITS


def pad(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    sound = nn.utils.rnn.pad_sequence([one for one, _ in samples], batch_first=True)
    return sound, torch.tensor([digit for _, digit in samples])


class DigitReader(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(BANDS, 32, batch_first=True), nn.Linear(32, DIGITS)
        self.accuracy = MulticlassAccuracy(DIGITS)

    def forward(self, sound: Tensor) -> Tensor:
        return self.head(self.gru(sound)[0].mean(1))

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        sound, digits = batch
        loss = nn.functional.cross_entropy(self(sound), digits)
        device_wait(30 + 0.4 * sound.shape[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        sound, digits = batch
        device_wait(18)
        self.accuracy(self(sound), digits)
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=tempo.iters + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Beat(L.Callback):
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        tempo.start()

    def on_train_batch_end(self, *args: object) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(SEED)
    with tempfile.TemporaryDirectory(prefix="digits-") as name:
        keep = ModelCheckpoint(name, monitor="val_accuracy", mode="max", save_top_k=2)
        trainer = L.Trainer(
            accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=tempo.iters,
            val_check_interval=100, check_val_every_n_epoch=None, num_sanity_val_steps=0, gradient_clip_val=1.0,
            callbacks=[keep, Beat()], logger=False, enable_progress_bar=False, enable_model_summary=False,
            use_distributed_sampler=False,
        )  # fmt: skip
        rank = int(os.environ["RANK"])
        train = DataLoader(SpokenDigits(SEED + rank, BATCH * tempo.iters), BATCH, collate_fn=pad)
        trainer.fit(DigitReader(), train, DataLoader(SpokenDigits(SEED + 9, 6 * BATCH), BATCH, collate_fn=pad))
        tempo.report(trainer.global_rank)


if __name__ == "__main__":
    main()
