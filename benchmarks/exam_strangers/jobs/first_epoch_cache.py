"""Satellite pictures from a slow store; loader processes (fork) put each decoded one on the local disk."""

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

ITERS = int(os.environ.get("ITERS", "800"))
ONSET = int(os.environ.get("ONSET", "200"))  # only where the two means are split: the cache is full long before
SEED = int(os.environ.get("SEED", "0"))
BATCH, PICTURES = 4, 160  # of a rank: one epoch is 40 iterations


class Scenes(Dataset):
    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank

    def __len__(self):
        return PICTURES

    def download(self, index):
        time.sleep(0.08)  # the store's first byte
        rng = np.random.default_rng((SEED, self.rank, index))
        return rng.integers(0, 4096, (4, 64, 64), dtype=np.uint16)

    def __getitem__(self, index):
        path = self.folder / f"{index:05d}.npy"
        if path.exists():
            scene = np.load(path)
        else:
            scene = self.download(index)
            np.save(path, scene)
        return torch.from_numpy(scene.astype(np.float32) / 4096), index % 5


class LandUse(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(4, 8, 3, stride=4), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=4))
        self.classes = nn.Linear(8, 5)

    def forward(self, x):
        time.sleep(0.06)
        return self.classes(self.features(x).mean((2, 3)))


def epochs(loader):
    while True:
        yield from loader


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    folder = Path(tempfile.mkdtemp(prefix=f"scenes-{rank}-"))
    loader = DataLoader(
        Scenes(folder, rank),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    model = DistributedDataParallel(LandUse())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    took, last = [], time.perf_counter()
    for step, (scene, label) in enumerate(epochs(loader)):
        if step == ITERS:
            break
        loss = nn.functional.cross_entropy(model(scene), label)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.055)
        optimizer.step()
        now = time.perf_counter()
        took.append(now - last)
        last = now
    dist.barrier()
    dist.destroy_process_group()
    shutil.rmtree(folder, ignore_errors=True)
    if rank == 0:
        filled = min(45, ONSET // 2)
        line = {
            "job": "first_epoch_cache",
            "mean_ms_before": 1e3 * float(np.mean(took[filled:ONSET])),
            "mean_ms_after": 1e3 * float(np.mean(took[ONSET:])),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
