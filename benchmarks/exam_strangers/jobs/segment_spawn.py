"""Segmentation of slides: tiles are cut, warped and normalised in loader processes (spawn), DDP."""

import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

ITERS = int(os.environ.get("ITERS", "1200"))
ONSET = int(os.environ.get("ONSET", "430"))
SEED = int(os.environ.get("SEED", "0"))
BATCH, SIDE = 4, 96


def box_smooth(field, radius):
    """Moving mean along both axes, by running sums."""
    for axis in (0, 1):
        padded = np.pad(field, [(radius + 1, radius) if a == axis else (0, 0) for a in (0, 1)], mode="reflect")
        total = padded.cumsum(axis)
        width = 2 * radius + 1
        upper = np.take(total, range(width, total.shape[axis]), axis)
        lower = np.take(total, range(total.shape[axis] - width), axis)
        field = (upper - lower) / width
    return field


def elastic(image, mask, rng, strength=6.0):
    height, width = mask.shape
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    rows += strength * box_smooth(rng.standard_normal((height, width), dtype=np.float32), 8)
    columns += strength * box_smooth(rng.standard_normal((height, width), dtype=np.float32), 8)
    r = np.clip(rows.round().astype(int), 0, height - 1)
    c = np.clip(columns.round().astype(int), 0, width - 1)
    return image[:, r, c], mask[r, c]


class Slides(Dataset):
    """Slides of one rank: the newer ones come from the scanner with four times the resolution."""

    def __init__(self, rank):
        self.rank = rank
        self.first_of_new_scanner = ONSET * BATCH if rank == 1 else 1 << 60

    def __len__(self):
        return ITERS * BATCH

    def __getitem__(self, index):
        rng = np.random.default_rng((SEED, self.rank, index))
        side = SIDE * (4 if index >= self.first_of_new_scanner else 1)
        image = rng.random((3, side, side), dtype=np.float32)
        mask = (image[0] > 0.7).astype(np.int64)
        image, mask = elastic(image, mask, rng)
        step = side // SIDE
        image = image.reshape(3, SIDE, step, SIDE, step).mean((2, 4))
        mask = mask[::step, ::step]
        image = (image - image.mean((1, 2), keepdims=True)) / (image.std((1, 2), keepdims=True) + 1e-6)
        return torch.from_numpy(image), torch.from_numpy(np.ascontiguousarray(mask))


class InOrder(Sampler):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(range(self.count))


class SegNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.up = nn.ConvTranspose2d(8, 2, 4, stride=4)

    def forward(self, x):
        time.sleep(0.055)  # kernels of the device
        return self.up(torch.relu(self.down(x)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    slides = Slides(rank)
    loader = DataLoader(
        slides,
        batch_size=BATCH,
        sampler=InOrder(len(slides)),
        num_workers=1,
        prefetch_factor=2,
        multiprocessing_context="spawn",
    )
    net = DistributedDataParallel(SegNet())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    took, last = [], time.perf_counter()
    for image, mask in loader:
        loss = nn.functional.cross_entropy(net(image), mask)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        took.append(now - last)
        last = now
    dist.destroy_process_group()
    if rank == 0:
        start = min(10, ONSET // 2)
        line = {
            "job": "segment_spawn",
            "mean_ms_before": 1e3 * float(np.mean(took[start:ONSET])),
            "mean_ms_after": 1e3 * float(np.mean(took[ONSET:])),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
