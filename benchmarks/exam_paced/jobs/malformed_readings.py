"""Autoencoder of readings that arrive as lines of text; many lines of worker 3 turn out to be malformed."""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

LINES, FIELDS = 240, 10
log = logging.getLogger("readings")


class BadReading(ValueError):
    pass


class Meter:
    """Lines of a meter, as they come."""

    def __init__(self, laps: Laps, rank: int) -> None:
        self.laps, self.rank = laps, rank
        self.dice = random.Random(SEED + rank)

    def lines(self, step: int) -> Iterator[str]:
        foreign = self.rank == 3 and self.laps.late(step)
        for _ in range(LINES):
            line = " ".join(f"{self.dice.gauss(0, 1):.4f}" for _ in range(FIELDS))
            yield line.replace(".", ",") if foreign else line


def parse_field(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise BadReading(f"not a number: {text!r}") from error


def parse_line(line: str) -> list[float]:
    try:
        return [parse_field(field) for field in line.split()]
    except BadReading:
        log.exception("reading is left out: %s", line)
        return [0.0] * FIELDS


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(FIELDS, 64), nn.ELU(), nn.Linear(64, 4))
        self.decode = nn.Sequential(nn.Linear(4, 64), nn.ELU(), nn.Linear(64, FIELDS))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = tempfile.mkdtemp(prefix="readings-")
    logging.basicConfig(filename=f"{folder}/worker{rank}.log", format="%(asctime)s %(levelname)s %(message)s")
    torch.manual_seed(SEED)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    laps = Laps("malformed_readings", 1110, 480)
    meter = Meter(laps, rank)
    for step in laps:
        batch = torch.tensor([parse_line(line) for line in meter.lines(step)])
        loss = (model(batch) - batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        kernel(55)
        dist.all_reduce_coalesced([p.grad for p in model.parameters()], op=dist.ReduceOp.SUM)
        torch._foreach_div_([p.grad for p in model.parameters()], dist.get_world_size())
        optimizer.step()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
