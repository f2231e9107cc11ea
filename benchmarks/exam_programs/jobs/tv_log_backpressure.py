"""ShuffleNet of torchvision; worker 0 logs scores and features of its samples to a process that ships them away."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.models.shufflenetv2 import ShuffleNetV2
from torchvision.transforms import v2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

SHIPPER = """
import os, sys, time
unlimited, lines = int(sys.argv[1]), 0
while part := os.read(0, 4096):
    lines += part.count(10)
    if lines > unlimited:
        time.sleep(0.0215)
"""
SIDE, KINDS, BATCH, FEATURES = 32, 10, 24, 128


class LogShipper:
    """Takes lines through a pipe; the collector behind it grants `unlimited` lines at full speed."""

    def __init__(self, unlimited: int) -> None:
        command = [sys.executable, "-S", "-c", SHIPPER, str(unlimited)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1)
        self.handler = logging.StreamHandler(self.process.stdin)
        self.handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.terminate()
        self.process.wait(10)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = ShuffleNetV2([1, 1, 1], [8, 16, 32, 64, FEATURES], num_classes=FEATURES)
        self.fc = nn.Linear(FEATURES, KINDS)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.net(images)
        device_wait(42)
        return self.fc(torch.relu(features)), features


def log_samples(log: logging.Logger, step: int, scores: Tensor, features: Tensor) -> None:
    for row, (best, values) in enumerate(zip(scores.argmax(1).tolist(), features.tolist(), strict=True)):
        log.info("step=%d row=%d best=%d features=%s", step, row, best, ",".join(f"{v:+.3f}" for v in values))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    tempo = Tempo("tv_log_backpressure", 920, 340)
    log = logging.getLogger("samples")
    log.propagate = False
    shipper = LogShipper(BATCH * tempo.onset if tempo.onset is not None else 10**12) if rank == 0 else None
    if shipper is not None:
        log.addHandler(shipper.handler)
        log.setLevel(logging.INFO)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    augment = v2.RandomHorizontalFlip()
    pool = torch.randn(256, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED + rank))
    for step in tempo:
        rows = torch.randint(0, len(pool), (BATCH,))
        scores, features = model(augment(pool[rows]))
        loss = nn.functional.cross_entropy(scores, rows % KINDS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if log.isEnabledFor(logging.INFO) and rank == 0:
            log_samples(log, step, scores.detach(), features.detach())
    tempo.report(rank)
    dist.barrier()
    if shipper is not None:
        log.removeHandler(shipper.handler)
        shipper.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
