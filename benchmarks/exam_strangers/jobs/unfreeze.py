"""Fine-tuning from the top: the head alone, then block after block is unfrozen (and DDP built anew)."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ITERS = int(os.environ.get("ITERS", "2300"))
ONSET = int(os.environ.get("ONSET", "800"))  # first step with an unfrozen block
SEED = int(os.environ.get("SEED", "0"))
DIM, BLOCKS = 48, 4
PLAN = {ONSET: 1, ONSET + (ITERS - ONSET) // 3: 2, ONSET + 2 * (ITERS - ONSET) // 3: 3}


class TwoWay(torch.autograd.Function):
    """Kernels of a block: forward, and backward only where a gradient is asked for."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.006)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.012)
        return gradient


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.feed = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        return x + TwoWay.apply(self.feed(self.norm(x)))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = nn.Linear(DIM, 6)

    def forward(self, x):
        return self.head(self.blocks(x))


class Finetuner:
    def __init__(self, model):
        self.model = model
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
        self.wrapped = DDP(model)

    def unfreeze(self, count):
        """The uppermost blocks learn too, more slowly."""
        block = self.model.blocks[BLOCKS - count]
        block.requires_grad_(True)
        self.optimizer.add_param_group({"params": list(block.parameters()), "lr": 1e-4})
        self.wrapped = DDP(self.model)

    def step(self, x, y):
        loss = nn.functional.cross_entropy(self.wrapped(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    finetuner = Finetuner(Backbone())
    generator = torch.Generator().manual_seed(SEED * 10 + rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        if step in PLAN:
            finetuner.unfreeze(PLAN[step])
            if rank == 0:
                print(f"step {step}: {PLAN[step]} blocks learn", flush=True)
        x = torch.randn(32, DIM, generator=generator)
        finetuner.step(x, x[:, :6].argmax(1))
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    if rank == 0:
        warm = min(10, ONSET // 2)
        result = {
            "job": "unfreeze",
            "mean_ms_before": sum(took[warm:ONSET]) / (ONSET - warm) * 1e3,
            "mean_ms_after": sum(took[ONSET:]) / (ITERS - ONSET) * 1e3,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
