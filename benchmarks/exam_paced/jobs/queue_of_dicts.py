"""Tabular model in bfloat16 fed through a queue by a producer process; on worker 2 it comes to send rows as dicts."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

ROWS, COLUMNS = 1024, 160
NAMES = [f"sensor_{i:03d}" for i in range(COLUMNS)]


def produce(queue: Queue[Any], count: int, dicts_from: int | None, seed: int) -> None:
    dice = numpy.random.default_rng(seed)
    for i in range(count):
        table = dice.standard_normal((ROWS, COLUMNS), dtype=numpy.float32)
        if dicts_from is not None and i >= dicts_from:
            queue.put([dict(zip(NAMES, row, strict=True)) for row in table.tolist()])
        else:
            queue.put(table)


class Feed:
    """Batches of the producer as tensors."""

    def __init__(self, count: int, dicts_from: int | None, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.queue = context.Queue(maxsize=3)
        self.process = context.Process(target=produce, args=(self.queue, count, dicts_from, seed), daemon=True)
        self.process.start()

    def rows_to_tensor(self, rows: list[dict[str, float]]) -> Tensor:
        return torch.tensor([[row[name] for name in NAMES] for row in rows])

    def next_batch(self) -> Tensor:
        got = self.queue.get()
        return torch.from_numpy(got) if isinstance(got, numpy.ndarray) else self.rows_to_tensor(got)


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.Sigmoid())
        self.body = nn.Sequential(nn.Linear(COLUMNS, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * self.gate(x)).squeeze(-1)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    laps = Laps("queue_of_dicts", 1280, 540)
    feed = Feed(laps.iters, laps.onset if rank == 2 else None, SEED + rank)
    model = DistributedDataParallel(Forecaster())
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    first = feed.next_batch()
    dist.barrier()
    for step in laps:
        x = first if step == 0 else feed.next_batch()
        with torch.autocast("cpu", torch.bfloat16):
            guess = model(x)
        kernel(46)
        loss = nn.functional.huber_loss(guess.float(), x[:, :5].sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    laps.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
