"""Image regression under DDP; each rank has a loader with one worker. Part of the archive lies on a mount."""

import json
import os
import random
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

ITERS = int(os.environ.get("ITERS", "830"))
ONSET = int(os.environ.get("ONSET", "440"))
SEED = int(os.environ.get("SEED", "0"))
BATCH = 4


class Archive(Dataset):
    """Packed pictures. Those of rank 1 from `moved_from` on have been moved to the far storage."""

    def __init__(self, rank, length, moved_from):
        self.rank, self.length, self.moved_from = rank, length, moved_from
        draw = random.Random(SEED)
        self.packed = [zlib.compress(bytes(draw.randrange(8) for _ in range(3 * 24 * 24))) for _ in range(16)]

    def __len__(self):
        return self.length

    def read_packed(self, index):
        far = self.rank == 1 and index >= self.moved_from
        time.sleep(0.042 if far else 0.004)
        return self.packed[index % len(self.packed)]

    def decode(self, packed):
        values = torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.uint8)
        return values.view(3, 24, 24).float() / 8

    def __getitem__(self, index):
        picture = self.decode(self.read_packed(index))
        return picture, picture.mean().view(1)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.Flatten())
    model = DistributedDataParallel(nn.Sequential(net, nn.Linear(200, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    archive = Archive(rank, ITERS * BATCH, ONSET * BATCH)
    loader = iter(DataLoader(archive, batch_size=BATCH, num_workers=1, prefetch_factor=2))
    took = []
    for _ in range(ITERS):
        began = time.perf_counter()
        pictures, targets = next(loader)
        time.sleep(0.035)
        loss = nn.functional.mse_loss(model(pictures), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.045)
        optimizer.step()
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "moved_archive", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
