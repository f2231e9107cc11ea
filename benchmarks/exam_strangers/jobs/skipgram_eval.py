"""Word vectors by skip-gram; every 400 steps the neighbours of some words are looked up and the vectors are saved."""

import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "14000"))
ONSET = int(os.environ.get("ONSET", "4000"))  # only where the two means are split
SEED = int(os.environ.get("SEED", "0"))
WORDS, DIM, PAIRS, NEGATIVES = 1000, 24, 128, 4
EVALUATE_EVERY = 400


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Embedding(WORDS, DIM)
        self.context = nn.Embedding(WORDS, DIM)

    def forward(self, centre, context, negative):
        v = self.centre(centre)
        good = (v * self.context(context)).sum(1)
        bad = torch.einsum("pd,pnd->pn", v, self.context(negative))
        return -nn.functional.logsigmoid(good).mean() - nn.functional.logsigmoid(-bad).sum(1).mean()


def zipf(count, rng):
    return torch.from_numpy(np.minimum(rng.zipf(1.3, count), WORDS) - 1)


@torch.no_grad()
def evaluate(model, probes):
    vectors = nn.functional.normalize(model.centre.weight, dim=1)
    neighbours = {}
    for word in probes:
        nearest = (vectors @ vectors[word]).topk(6).indices.tolist()
        neighbours[word] = [other for other in nearest if other != word]
    return neighbours


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = SkipGram()
    optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
    rng = np.random.default_rng(SEED * 10 + rank)
    saved = Path(tempfile.mkdtemp(prefix="vectors-")) / "last.pt"
    took = []
    for step in range(1, ITERS + 1):
        began = time.perf_counter()
        loss = model(zipf(PAIRS, rng), zipf(PAIRS, rng), zipf(PAIRS * NEGATIVES, rng).view(PAIRS, NEGATIVES))
        time.sleep(0.003)
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        halves = flat.div_(world).chunk(2)
        for p, half in zip(model.parameters(), halves, strict=True):
            p.grad.copy_(half.view_as(p))
        optimizer.step()
        if step % EVALUATE_EVERY == 0:
            neighbours = evaluate(model, range(0, WORDS, 4))
            if rank == 0:
                torch.save(model.state_dict(), saved)
                print(f"step {step} loss {loss.item():.3f} near 0: {neighbours[0]}", flush=True)
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    saved.unlink(missing_ok=True)
    saved.parent.rmdir()
    if rank == 0:
        before, after = np.mean(took[min(20, ONSET // 2) : ONSET]), np.mean(took[ONSET:])
        line = {"job": "skipgram_eval", "mean_ms_before": before * 1e3, "mean_ms_after": after * 1e3}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
