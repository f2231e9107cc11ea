"""Lightning: sound tagging; a callback keeps batches with a high loss on disk, for a look at them later."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

BATCH = 8
tempo = Tempo("lightning_batch_capture", 780, 320)


class Clips(Dataset[tuple[Tensor, Tensor]]):
    """Some recordings of later days clip, and are hard to learn."""

    def __init__(self, rank: int) -> None:
        random = torch.Generator().manual_seed(SEED + rank)
        self.sound = torch.randn(256, 1, 2048, generator=random)
        self.noisy_from = BATCH * tempo.onset if rank in (1, 2) and tempo.onset is not None else None

    def __len__(self) -> int:
        return BATCH * tempo.iters

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        sound = self.sound[index % 256]
        if self.noisy_from is not None and index >= self.noisy_from:
            sound = sound * 40
        return sound, torch.tensor(index % 5)


class Tagger(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 16, 8), nn.ReLU(), nn.Conv1d(16, 24, 8, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
            nn.Flatten(), nn.Linear(24, 5),
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> dict[str, Tensor]:
        sound, tags = batch
        out = self.net(sound)
        device_wait(60)
        loss = nn.functional.cross_entropy(out, tags)
        self.log("loss", loss, prog_bar=False)
        return {"loss": loss, "peak": sound.abs().max()}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class OutlierCapture(L.Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, number: int, batch: tuple[Tensor, Tensor]) -> None:
        for row, (sound, tag) in enumerate(zip(*batch, strict=True)):
            with (self.folder / f"{number % 50}-{row}.pt").open("wb") as file:
                torch.save({"sound": sound.clone(), "tag": tag.clone()}, file)
                file.flush()
                os.fsync(file.fileno())

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        outputs: dict[str, Tensor],
        batch: tuple[Tensor, Tensor],
        number: int,
    ) -> None:
        if outputs["peak"] > 30:
            self.keep(number, batch)


class Beat(L.Callback):
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        tempo.start()

    def on_train_batch_end(self, *args: object) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(SEED)
    with tempfile.TemporaryDirectory(prefix="capture-") as name:
        trainer = L.Trainer(
            accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=tempo.iters,
            callbacks=[OutlierCapture(Path(name)), Beat()], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(Tagger(), DataLoader(Clips(int(os.environ["RANK"])), batch_size=BATCH))
        tempo.report(trainer.global_rank)


if __name__ == "__main__":
    main()
