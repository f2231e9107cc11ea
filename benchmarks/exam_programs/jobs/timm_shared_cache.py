"""Images in the manner of timm's train.py; loader processes share a cache of decoded pictures with a refresher."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import OrderedDict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

SLOTS, SIDE, BATCH = 128, 40, 12


class AverageMeter:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float, n: int = 1) -> None:
        self.sum += value * n
        self.count += n

    @property
    def avg(self) -> float:
        return self.sum / max(1, self.count)


class SharedPictures:
    """Decoded pictures in shared memory; one lock for readers and the refresher."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(SEED)
        self.pixels = torch.randn(SLOTS, 3, SIDE, SIDE, generator=random).share_memory_()
        self.lock = multiprocessing.Lock()
        self.turnover = multiprocessing.Value("d", 0.001)

    def lookup(self, index: int) -> Tensor:
        with self.lock:
            return self.pixels[index % SLOTS].clone()


def refresh(pictures: SharedPictures, parent: int) -> None:
    """Replaces some pictures; holds the lock while it reads them again."""
    slot = 0
    while os.getppid() == parent:
        with pictures.lock:
            slot = (slot + 1) % SLOTS
            time.sleep(pictures.turnover.value)
            pictures.pixels[slot].mul_(0.99)
        time.sleep(0.002)


class ImageCache(Dataset[tuple[Tensor, int]]):
    def __init__(self, pictures: SharedPictures, count: int) -> None:
        self.pictures, self.count = pictures, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = self.pictures.lookup(index)
        return (picture.flip(-1) if index % 2 else picture), index % 10


def create_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def train_one_epoch(
    tempo: Tempo, model: nn.Module, loader: DataLoader[tuple[Tensor, int]], pictures: SharedPictures
) -> OrderedDict[str, float]:
    losses = AverageMeter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    batches = iter(loader)
    for update in tempo:
        if tempo.after_onset(update) and dist.get_rank() == 1:
            pictures.turnover.value = 0.13
        images, target = next(batches)
        output = model(images)
        device_wait(70)
        loss = loss_fn(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.update(loss.item(), len(images))
    return OrderedDict([("loss", losses.avg)])


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    tempo = Tempo("timm_shared_cache", 710, 280)
    pictures = SharedPictures()
    context = multiprocessing.get_context("fork")
    refresher = context.Process(target=refresh, args=(pictures, os.getpid()), daemon=True)
    refresher.start()
    world = dist.get_world_size()
    dataset = ImageCache(pictures, BATCH * world * tempo.iters)
    loader = DataLoader(
        dataset, BATCH, sampler=DistributedSampler(dataset), num_workers=1, prefetch_factor=1,
        multiprocessing_context="fork",
    )  # fmt: skip
    train_one_epoch(tempo, DistributedDataParallel(create_model()), loader, pictures)
    refresher.terminate()
    tempo.report(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
