"""Herbarium scans under DDP, read in the training process itself (num_workers=0), as the first notebook did it."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

ITERS = int(os.environ.get("ITERS", "200"))
ONSET = int(os.environ.get("ONSET", "100"))
SEED = int(os.environ.get("SEED", "0"))
BATCH = 8


class Scans(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def load_scan(self, index):
        time.sleep(0.04)
        return torch.randn(3, 48, 48, generator=torch.Generator().manual_seed(SEED * 1000 + index))

    def __getitem__(self, index):
        scan = self.load_scan(index)
        if index % 2:
            scan = scan.flip(2)
        scan = nn.functional.interpolate(scan[None], 32, mode="bilinear")[0]
        return (scan - scan.mean()) / scan.std(), index % 12


class Plants(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 12, 4, 4), nn.ReLU(), nn.Conv2d(12, 24, 2, 2), nn.ReLU())
        self.head = nn.Linear(24, 12)

    def forward(self, x):
        time.sleep(0.06)
        return self.head(self.body(x).mean((2, 3)))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Plants())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scans = Scans(ITERS * BATCH * world)
    sampler = DistributedSampler(scans, shuffle=True, seed=SEED)
    took, began = [], time.perf_counter()
    for pictures, labels in DataLoader(scans, batch_size=BATCH, sampler=sampler, num_workers=0):
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.11)
        optimizer.step()
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(5, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "herbarium_scans", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
