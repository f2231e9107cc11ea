"""Face attributes with Lightning (`torchrun` starts the processes); large pictures are shrunk when read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

SIZE, BATCH = 24, 8
clock = StepClock("lightning_portraits", iters=300, onset=150)


class Portraits(Dataset[tuple[Tensor, Tensor]]):
    """Pictures of one worker; the professional ones at the end of the second share are large."""

    def __init__(self, rank: int) -> None:
        rng = np.random.default_rng(rank)
        self.small = rng.random((64, SIZE, SIZE), dtype=np.float32)
        self.large = rng.random((64, 10 * SIZE, 10 * SIZE), dtype=np.float32)
        self.first_large = clock.onset * BATCH if rank == 1 and clock.onset >= 0 else len(self)

    def __len__(self) -> int:
        return clock.iters * BATCH

    @staticmethod
    def shrink(picture: np.ndarray) -> np.ndarray:
        scale = len(picture) // SIZE
        rows = picture.tolist()
        result = np.empty((SIZE, SIZE), np.float32)
        for y in range(SIZE):
            for x in range(SIZE):
                total = 0.0
                for dy in range(scale):
                    for dx in range(scale):
                        total += rows[y * scale + dy][x * scale + dx]
                result[y, x] = total / scale**2
        return result

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = self.large[index % 64] if index >= self.first_large else self.small[index % 64]
        if len(picture) > SIZE:
            picture = self.shrink(picture)
        return torch.from_numpy(picture)[None], torch.tensor(float(picture.mean() > 0.5))


class FaceModel(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), Device(30), nn.Linear(24 * 36, 1),
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        pictures, smiling = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(pictures)[:, 0], smiling)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Watch(L.Callback):
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        clock.tick()

    def on_train_batch_end(self, *args: object) -> None:
        clock.tick()


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=clock.iters,
        callbacks=[Watch()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    loader = DataLoader(Portraits(int(os.environ["RANK"])), batch_size=BATCH, num_workers=0)
    trainer.fit(FaceModel(), loader)
    clock.report(trainer.global_rank)


if __name__ == "__main__":
    main()
