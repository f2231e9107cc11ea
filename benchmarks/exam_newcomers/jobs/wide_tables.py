"""Ranking model under DDP; rank 0 decides which negatives are drawn and tells the others, each step."""

import json
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "1000"))
ONSET = int(os.environ.get("ONSET", "560"))
SEED = int(os.environ.get("SEED", "0"))
ITEMS = 24_000


class Ranker(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.items = nn.Embedding(2000, width)
        self.users = nn.Embedding(500, width)
        self.score = nn.Sequential(nn.Linear(2 * width, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, users, items):
        time.sleep(0.030)
        pair = torch.cat((self.users(users)[:, None].expand(-1, items.shape[1], -1), self.items(items)), -1)
        return self.score(pair).squeeze(-1)


class NegativeTable:
    """How often each item may be drawn as a negative, and in whose company."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.rows = {i: (draw.random(), [draw.randrange(ITEMS) for _ in range(4)]) for i in range(ITEMS)}
        self.draw = draw

    def refresh(self, seen):
        for item in seen:
            self.rows[item] = (self.draw.random(), self.rows[item][1])

    def share(self):
        parcel = [self.rows if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(parcel, src=0)
        self.rows = parcel[0]

    def share_weights(self, count=512):
        weights = torch.tensor([self.rows[i][0] for i in range(count)])
        dist.broadcast(weights, src=0)
        return weights


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Ranker())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    table = NegativeTable(SEED)
    generator = torch.Generator().manual_seed(SEED + 100 * rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        users = torch.randint(500, (16,), generator=generator)
        items = torch.randint(2000, (16, 8), generator=generator)
        table.refresh(items[:, 1:].flatten().tolist())
        if step < ONSET:
            table.share_weights()
        else:
            table.share()
        scores = model(users, items)
        loss = nn.functional.cross_entropy(scores, torch.zeros(16, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.035)
        optimizer.step()
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "wide_tables", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
