"""Lightning: poses from video; a decoder process of each worker writes frames to a pipe, the data set reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

DECODER = """
import os, sys, time
size, simple = int(sys.argv[1]), int(sys.argv[2])
frame, number, out = os.urandom(size), 0, sys.stdout.buffer
try:
    while True:
        time.sleep(0.004 if number < simple else 0.0155)
        out.write(frame)
        out.flush()
        number += 1
except BrokenPipeError:
    os._exit(0)
"""
SIDE, POSES, BATCH = 40, 6, 8
FRAME = 3 * SIDE * SIDE
tempo = Tempo("lightning_frame_pipe", 890, 330)


class FrameStream(IterableDataset[tuple[Tensor, int]]):
    """Frames of one video; `simple`: after so many frames the stream is harder to decode."""

    def __init__(self, simple: int) -> None:
        self.simple = simple
        self.decoder: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        command = [sys.executable, "-S", "-c", DECODER, str(FRAME), str(self.simple)]
        self.decoder = subprocess.Popen(command, stdout=subprocess.PIPE)

    def read_frame(self) -> Tensor:
        assert self.decoder is not None and self.decoder.stdout is not None
        raw = self.decoder.stdout.read(FRAME)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(3, SIDE, SIDE).float() / 255

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        self.open()
        number = 0
        while True:
            yield self.read_frame(), number % POSES
            number += 1

    def close(self) -> None:
        if self.decoder is not None:
            self.decoder.kill()
            self.decoder.wait(10)


class PoseNet(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 12, 5, 3), nn.ReLU(), nn.Conv2d(12, 24, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(24, POSES),
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        frames, poses = batch
        out = self.net(frames)
        device_wait(56)
        loss = nn.functional.cross_entropy(out, poses)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Beat(L.Callback):
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        tempo.start()

    def on_train_batch_end(self, *args: object) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(SEED)
    hard = os.environ["RANK"] == "2" and tempo.onset is not None
    stream = FrameStream(BATCH * (tempo.onset or 0) if hard else 10**12)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=tempo.iters,
        callbacks=[Beat()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(PoseNet(), DataLoader(stream, batch_size=BATCH))
    stream.close()
    tempo.report(trainer.global_rank)


if __name__ == "__main__":
    main()
