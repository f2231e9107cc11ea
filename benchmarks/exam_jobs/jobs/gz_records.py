"""Ranking model on click records that are streamed from files, plain or packed."""

from __future__ import annotations

import gzip
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

FIELDS, BATCH, RECORDS = 24, 16, 4000


def write_shard(folder: Path, packed: bool, seed: int) -> tuple[Path, list[tuple[int, int]]]:
    """A file of one record a line, and where each record starts and how long it is."""
    rng = random.Random(seed)
    lines = []
    for _ in range(RECORDS):
        record = {"features": [round(rng.gauss(0, 1), 5) for _ in range(FIELDS)], "clicked": rng.randint(0, 1)}
        lines.append((json.dumps(record) + "\n").encode())
    path = folder / ("clicks.jsonl.gz" if packed else "clicks.jsonl")
    path.write_bytes(gzip.compress(b"".join(lines), 6) if packed else b"".join(lines))
    index, start = [], 0
    for line in lines:
        index.append((start, len(line)))
        start += len(line)
    return path, index


class ClickStream(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, clock: StepClock, rank: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"clicks-{rank}-"))
        self.clock, self.rng = clock, random.Random(rank)
        self.plain = write_shard(folder, False, rank)
        # last week's shard of the first worker came packed
        self.last_week = write_shard(folder, True, rank) if rank == 0 else self.plain

    @staticmethod
    def read_record(path: Path, start: int, length: int) -> dict[str, list[float]]:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as file:
            file.seek(start)
            return json.loads(file.read(length))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(self.clock.iters):
            path, index = self.last_week if self.clock.late(step) else self.plain
            for _ in range(BATCH):
                record = self.read_record(path, *self.rng.choice(index))
                yield torch.tensor(record["features"]), torch.tensor(float(record["clicked"]))


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(FIELDS, 1)
        self.deep = nn.Sequential(nn.Linear(FIELDS, 128), nn.ReLU(), Device(35), nn.Linear(128, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (self.wide(x) + self.deep(x))[:, 0]


class Fit:
    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.clock = StepClock("gz_records")
        self.loader = DataLoader(ClickStream(self.clock, self.rank), batch_size=BATCH)
        self.model = DistributedDataParallel(Ranker())
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.05)

    def step(self, features: Tensor, clicked: Tensor) -> None:
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(features), clicked)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def run(self) -> None:
        self.clock.tick()
        for features, clicked in self.loader:
            self.step(features, clicked)
            self.clock.tick()
        self.clock.report(self.rank)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    Fit().run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
