"""Digit model with Lightning in one process; files are unpacked once, validated and saved now and then."""

from __future__ import annotations

import sys
import tempfile
import zlib
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

SIZE, BATCH, FILES = 16, 16, 8
clock = StepClock("healthy_first_epoch")


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Each file is unpacked when it is needed for the first time."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        rng = np.random.default_rng(3)
        raw = [rng.integers(0, 256, (6000, SIZE, SIZE), dtype=np.uint8) // 64 for _ in range(FILES)]
        self.packed = [zlib.compress(pictures.tobytes(), 3) for pictures in raw]
        self.unpacked: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self.batches * BATCH

    def open(self, number: int) -> np.ndarray:
        if number not in self.unpacked:
            data = np.frombuffer(zlib.decompress(self.packed[number]), np.uint8)
            self.unpacked[number] = data.reshape(-1, SIZE, SIZE).astype(np.float32)
        return self.unpacked[number]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = self.open(index // BATCH % FILES)[index % 6000]
        return torch.from_numpy(picture)[None], torch.tensor(int(picture.sum()) % 10)


class DigitModel(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), Device(30), nn.Linear(256, 10),
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=50)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Watch(L.Callback):
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        clock.tick()

    def on_train_batch_end(self, *args: object) -> None:
        clock.tick()


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(0)
    folder = Path(tempfile.mkdtemp(prefix="digits-"))
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=clock.iters, val_check_interval=40, check_val_every_n_epoch=None,
        callbacks=[Watch(), ModelCheckpoint(folder, every_n_train_steps=20)], logger=False,
        enable_progress_bar=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(DigitModel(), DataLoader(Digits(clock.iters), BATCH), DataLoader(Digits(3), BATCH))
    clock.report(trainer.global_rank)


if __name__ == "__main__":
    main()
