"""Recommender with tables split over the workers (as TorchRec does): the rows looked up travel by an all-to-all."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

BATCH, WIDTH, ROWS, HISTORY, LONGEST = 96, 32, 2000, 4, 760


class TableShard(nn.Module):
    """Tables of one worker. `pooled`: the rows of a person's history are added up before they are sent, else padded."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.pooled = True

    def lookup(self, ids: Tensor) -> Tensor:
        rows = self.table(ids)
        if self.pooled:
            return rows.sum(2)
        return nn.functional.pad(rows, (0, 0, 0, LONGEST - HISTORY)).flatten(2)


class OutputDist:
    """Sends each worker the rows of its people."""

    def __init__(self, widths: list[int]) -> None:
        self.widths = widths

    def exchange(self, rows: Tensor) -> list[Tensor]:
        rank, world = dist.get_rank(), dist.get_world_size()
        sent = [BATCH * self.widths[rank]] * world
        received = [BATCH * width for width in self.widths]
        flat = all_to_all_single(rows.new_empty(sum(received)), rows.flatten(), received, sent)
        return [part.view(BATCH, -1) for part in flat.split(received)]


class Interaction(nn.Module):
    def __init__(self, tables: int) -> None:
        super().__init__()
        self.top = nn.Sequential(nn.Linear(tables * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, parts: list[Tensor]) -> Tensor:
        return self.top(torch.cat([part.view(BATCH, -1, WIDTH).mean(1) for part in parts], 1))[:, 0]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    shard, widths = TableShard(), [WIDTH] * world
    output, top = OutputDist(widths), Interaction(world)
    sparse = torch.optim.SGD(shard.parameters(), lr=0.05)
    dense = torch.optim.Adam(top.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(SEED + rank)
    tempo = Tempo("dlrm_wide_tables", 810, 310)
    for step in tempo:
        if tempo.after_onset(step) and widths[1] == WIDTH:
            widths[1] = WIDTH * LONGEST
            shard.pooled = rank != 1
        ids = torch.randint(ROWS, (world, BATCH, HISTORY), generator=random)
        parts = output.exchange(shard.lookup(ids))
        out = top(parts)
        device_wait(60)
        loss = nn.functional.binary_cross_entropy_with_logits(out, torch.rand(BATCH, generator=random).round())
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        for parameter in top.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= world
        sparse.step()
        dense.step()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
