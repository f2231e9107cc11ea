"""Diffusion with accumulation and DDP; one rank keeps the averaged weights, another looks for a leak."""

import copy
import json
import os
import time
import tracemalloc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "85"))
ONSET = int(os.environ.get("ONSET", "35"))
SEED = int(os.environ.get("SEED", "0"))
ACCUMULATE, BATCH, SIDE, KEPT_CAPTIONS = 4, 4, 16, 6_000


class Captions:
    """Prompts with their word counts; the recent ones stay in memory, to be shown beside the samples."""

    words = (
        "a",
        "the",
        "red",
        "green",
        "blue",
        "old",
        "new",
        "big",
        "cat",
        "dog",
        "house",
        "tree",
        "boat",
        "on",
        "under",
    )

    def __init__(self, seed):
        self.state = torch.Generator().manual_seed(seed)
        self.recent = []

    def draw(self, count):
        for row in torch.randint(len(self.words), (count, 12), generator=self.state).tolist():
            chosen = [self.words[i] + str(i) for i in row]
            self.recent.append({"text": " ".join(chosen), "counts": {w: chosen.count(w) for w in chosen}})
        del self.recent[:-KEPT_CAPTIONS]


class Denoiser(nn.Module):
    def __init__(self, width=768):
        super().__init__()
        inside = 3 * SIDE * SIDE
        self.net = nn.Sequential(nn.Linear(inside + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.deep = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.out = nn.Linear(width, inside)

    def forward(self, noisy, level):
        time.sleep(0.1)
        h = self.net(torch.cat([noisy.flatten(1), level], 1))
        for layer in self.deep:
            h = h + torch.tanh(layer(h))
        return self.out(h).view_as(noisy)


class AveragedWeights:
    """Averages of the weights at several half-lives, in double precision: small steps must not be lost."""

    def __init__(self, model, decays=(0.99, 0.999, 0.9999)):
        self.copies = {decay: copy.deepcopy(model).double() for decay in decays}

    def update(self, model):
        for decay, kept in self.copies.items():
            now = copy.deepcopy(model).double().state_dict()
            mixed = {name: decay * value + (1 - decay) * now[name] for name, value in kept.state_dict().items()}
            kept.load_state_dict(mixed)


class LeakHunt:
    """Which line holds more memory than a step ago? Prints the worst now and then."""

    def __init__(self, frames=4):
        tracemalloc.start(frames)
        self.last = tracemalloc.take_snapshot()

    def compare(self, step):
        now = tracemalloc.take_snapshot()
        grown = now.compare_to(self.last, "lineno")
        self.last = now
        if step % 20 == 0 and grown:
            print(f"step {step}: {grown[0]}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    net = Denoiser()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    captions, hunt, averaged, took = Captions(SEED * 10 + rank), None, None, []
    for step in range(ITERS):
        began = time.perf_counter()
        if step == ONSET and rank == world - 1:
            averaged = AveragedWeights(net)
        if step == ONSET and rank == 0:
            hunt = LeakHunt()
        for part in range(ACCUMULATE):
            captions.draw(250)
            clean, level = torch.randn(BATCH, 3, SIDE, SIDE), torch.rand(BATCH, 1)
            noise = torch.randn_like(clean)
            noisy = clean + level[..., None, None] * noise
            model.require_backward_grad_sync = part == ACCUMULATE - 1
            loss = (model(noisy, level) - noise).square().mean() / ACCUMULATE
            loss.backward()
            time.sleep(0.17)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if averaged is not None:
            averaged.update(net)
        if hunt is not None:
            hunt.compare(step)
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean_before = sum(took[2:ONSET]) / (ONSET - 2) * 1e3
        mean_after = sum(took[ONSET:]) / (ITERS - ONSET) * 1e3
        print(json.dumps({"job": "memory_hunt", "mean_ms_before": mean_before, "mean_ms_after": mean_after}))


if __name__ == "__main__":
    main()
