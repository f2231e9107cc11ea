"""Instruction tuning with the whole data set as Python lists in memory; garbage is collected by hand."""

import gc
import json
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "640"))
ONSET = int(os.environ.get("ONSET", "250"))
SEED = int(os.environ.get("SEED", "0"))
EXAMPLES = 30_000


class Instructions:
    """Each example is a dict of prompt, answer and mask; lists are shared where they are equal, to save memory."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.examples = [self.example(number) for number in range(EXAMPLES)]

    def example(self, number):
        prompt = [number % 997, number % 89, 3]
        answer = [number % 613, 5]
        return {"prompt": prompt, "answer": answer, "meta": {"id": number, "tags": [number % 7]}}

    def batch(self, size, width):
        rows, targets = [], []
        for _ in range(size):
            example = self.examples[self.random.randrange(EXAMPLES)]
            tokens = example["prompt"] + example["answer"]
            rows.append(tokens + [0] * (width - len(tokens)))
            targets.append(example["meta"]["tags"][0])
        return torch.tensor(rows), torch.tensor(targets)


class ManualCollector:
    """Automatic collection is off, so that ranks do not stop when they like. Each has its own turn."""

    def __init__(self, rank, every):
        gc.disable()
        self.rank, self.every = rank, every

    def after_step(self, step):
        if step % self.every == self.rank % self.every:
            gc.collect()


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 32)
        self.encoder = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, 7)

    def forward(self, tokens):
        time.sleep(0.045)
        _, last = self.encoder(self.embed(tokens))
        return self.out(last[0])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    data = Instructions(SEED * 10 + rank)
    model = DistributedDataParallel(Tiny())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    collector = ManualCollector(rank, every=120)
    took = []
    for step in range(ITERS):
        begin = time.perf_counter()
        if step == ONSET:
            collector.every = world  # after the host had run out of memory once
        tokens, targets = data.batch(8, 12)
        loss = nn.functional.cross_entropy(model(tokens), targets)
        loss.backward()
        time.sleep(0.05)
        optimizer.step()
        optimizer.zero_grad()
        collector.after_step(step)
        took.append(time.perf_counter() - begin)
    dist.destroy_process_group()
    if rank == 0:
        mean = {
            "mean_ms_before": 1e3 * sum(took[5:ONSET]) / max(1, ONSET - 5),
            "mean_ms_after": 1e3 * sum(took[ONSET:]) / (ITERS - ONSET),
        }
        print(json.dumps({"job": "staggered_gc", **mean}), flush=True)


if __name__ == "__main__":
    main()
