"""Long-context stage of a language model: the context grows by a plan while the number of rows stays the same."""

import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ITERS = int(os.environ.get("ITERS", "80"))
ONSET = int(os.environ.get("ONSET", "32"))  # first step of the second phase
SEED = int(os.environ.get("SEED", "0"))
VOCABULARY, DIM, HEADS, LAYERS, MICRO = 800, 64, 4, 2, 3
PHASES = ((0, 256), (ONSET, 384), (ONSET + (ITERS - ONSET) // 2, 512))


def context_at(step):
    return max(length for first, length in PHASES if step >= first)


class CausalLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.feed = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.SiLU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        rows, length, _ = x.shape
        time.sleep(0.16 * length / 256 + 0.02 * (length / 256) ** 2)
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, DIM))
        return x + self.feed(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList(CausalLayer() for _ in range(LAYERS))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embed.weight.T * DIM**-0.5


def micro_batches(rng, length):
    for _ in range(MICRO):
        tokens = torch.from_numpy(rng.integers(0, VOCABULARY, (1, length + 1)))
        yield tokens[:, :-1], tokens[:, 1:]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DDP(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95))
    rng = np.random.default_rng(SEED * 10 + rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        length = context_at(step)
        total = 0.0
        for number, (tokens, targets) in enumerate(micro_batches(rng, length)):
            model.require_backward_grad_sync = number == MICRO - 1
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()) / MICRO
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: context {length}, loss {total:.3f}, {took[-1]:.2f} s", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        before, after = 1e3 * np.mean(took[1:ONSET]), 1e3 * np.mean(took[ONSET:])
        print(json.dumps({"job": "context_ramp", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
