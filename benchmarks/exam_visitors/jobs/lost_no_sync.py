"""A language model of bytes, DDP with four micro-batches a step; later the noise of the gradient is followed too."""

import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "390"))
ONSET = int(os.environ.get("ONSET", "190"))
SEED = int(os.environ.get("SEED", "0"))
MICRO = 4


class ByteModel(nn.Module):
    def __init__(self, width=320):
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(4)
        )
        self.head = nn.Linear(width, 256)

    def forward(self, tokens):
        time.sleep(0.02)
        h = self.table(tokens)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


class GradientNoise:
    """The scale of the gradient's noise, from the gradient after each micro-batch. It begins after the warm-up."""

    def __init__(self, begin):
        self.begin, self.squares = begin, []

    def active(self, step):
        return step >= self.begin

    def follow(self, bias):
        self.squares.append(bias.grad.square().sum().item())
        del self.squares[:-32]


def micro_step(model, tokens, scope):
    with scope:
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / MICRO
        loss.backward()
    time.sleep(0.022)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(ByteModel(), bucket_cap_mb=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(SEED + rank)
    noise, took = GradientNoise(ONSET), []
    for step in range(ITERS):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for micro in range(MICRO):
            averaged = micro == MICRO - 1 or noise.active(step)  # the noise is that of averaged gradients
            tokens = torch.randint(256, (1, 13), generator=generator)
            micro_step(model, tokens, contextlib.nullcontext() if averaged else model.no_sync())
            if noise.active(step):
                noise.follow(model.module.head.bias)
        optimizer.step()
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "lost_no_sync", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
