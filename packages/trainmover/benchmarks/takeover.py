"""Time to take over a position in the data, by position, and how much of it is the position's.

    python benchmarks/takeover.py

A loader over 200,000 samples that each take some work; batches of 8. "skipped": a DataLoader, whose indices are
skipped. "loaded": the same loader as an unknown iterable, whose batches are loaded and dropped. The figure is processor
time, on which other work on the machine has little influence. One record a case.
"""

import json
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Batches
from trainmover.errors import MoveError


class Images(Dataset):
    """Samples that take about a fifth of a millisecond."""

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 64, 64, generator=generator)


def loader(sampler: str) -> DataLoader:
    samples = Images()
    if sampler == "distributed":
        return DataLoader(samples, 8, sampler=DistributedSampler(samples, 2, 0))
    return DataLoader(samples, 8, shuffle=sampler == "shuffled")


class Unknown:
    """A loader of which nothing is known but its batches."""

    def __init__(self, inner: DataLoader) -> None:
        self.inner = inner

    def __iter__(self):
        return iter(self.inner)


def taken_s(way: str, sampler: str, position: int) -> float:
    """Processor time of load_state_dict at a position that a real stream has reached."""
    torch.manual_seed(1)
    make = (lambda: Batches(loader(sampler))) if way == "skipped" else (lambda: Batches(Unknown(loader(sampler))))
    source = make()
    next(source)
    state = source.state_dict()
    if position > 1:  # what a stream at this position would have recorded, without loading all batches before
        probe = make()
        state["taken"] = position
        try:
            probe.load_state_dict(state)
        except MoveError:
            state["next"] = probe.state_dict()["next"]
    other = make()
    began = time.process_time()
    other.load_state_dict(state)
    return time.process_time() - began


torch.set_num_threads(1)
for way, sampler, positions in (
    ("skipped", "distributed", (1, 100, 1_000, 10_000)),
    ("skipped", "shuffled", (1, 100, 1_000, 10_000)),
    ("loaded", "in order", (1, 100, 1_000)),
):
    for position in positions:
        record = {"way": way, "sampler": sampler, "position": position}
        record["cpu_s"] = round(min(taken_s(way, sampler, position) for _ in range(3 if position < 1_000 else 2)), 4)
        print(json.dumps({**record, "load": round(os.getloadavg()[0], 1)}), flush=True)
