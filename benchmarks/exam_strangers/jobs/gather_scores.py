"""Fraud scoring; the running AUC over the whole epoch is wanted on the board, on all ranks."""

import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "450"))
ONSET = int(os.environ.get("ONSET", "170"))
SEED = int(os.environ.get("SEED", "0"))
BATCH, FEATURES = 64, 30


class RunningAUC:
    """Area under the curve of all that has been seen since the last reset."""

    def __init__(self, every):
        self.every = every
        self.records = []
        self.value = 0.5

    def update(self, identifiers, scores, labels):
        self.records += zip(identifiers.tolist(), scores.tolist(), labels.tolist(), strict=True)

    def compute(self):
        shards = [None] * dist.get_world_size()
        dist.all_gather_object(shards, self.records)
        everything = {record[0]: record for shard in shards for record in shard}  # samplers repeat the last ones
        ranked = sorted(everything.values(), key=lambda record: record[1])
        positives = sum(label for _, _, label in ranked)
        negatives = len(ranked) - positives
        rank_sum = sum(place for place, (_, _, label) in enumerate(ranked, 1) if label)
        if positives and negatives:
            self.value = (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
        return self.value


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        time.sleep(0.05)
        return self.net(x).squeeze(1)


def transactions(rank, world):
    """Batches for ever: identifiers, features, labels."""
    rng = np.random.default_rng(SEED * 10 + rank)
    number = rank
    while True:
        x = rng.standard_normal((BATCH, FEATURES)).astype(np.float32)
        y = (x[:, 0] + 0.5 * rng.standard_normal(BATCH) > 1.5).astype(np.float32)
        identifiers = torch.arange(BATCH) * world + number
        number += BATCH * world
        yield identifiers, torch.from_numpy(x), torch.from_numpy(y)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = Scorer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    auc = RunningAUC(every=100)
    stream = transactions(rank, world)
    durations = []
    for step in range(ITERS):
        tick = time.perf_counter()
        if step == ONSET:
            auc.every = 1  # "why does the curve have so few points?"
        identifiers, x, y = next(stream)
        score = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(score, y)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.09)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= world
        optimizer.step()
        auc.update(identifiers, score.detach(), y)
        if (step + 1) % auc.every == 0:
            auc.compute()
        durations.append(time.perf_counter() - tick)
        if rank == 0 and step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}, AUC {auc.value:.4f}", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        before = np.mean(durations[min(10, ONSET // 2) : ONSET]) * 1e3
        after = np.mean(durations[ONSET:]) * 1e3
        print(json.dumps({"job": "gather_scores", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
