"""Recommender with a sampler of its own that never shows a pair twice."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

USERS, ITEMS, BATCH = 3000, 2000, 64


class Pairs(Dataset[tuple[int, int, float]]):
    def __len__(self) -> int:
        return USERS * ITEMS

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        user, item = divmod(index, ITEMS)
        return user, item, float((user * 7 + item * 3) % 10 < 4)


class FreshPairs(Sampler[list[int]]):
    """Batches of pairs of this worker that have not been drawn before."""

    def __init__(self, laps: Laps, rank: int, world: int) -> None:
        self.laps, self.rank, self.world = laps, rank, world
        self.dice = random.Random(1000 * SEED + rank)
        self.seen: set[int] | list[int] = set()

    def draw(self) -> int:
        while True:
            index = self.dice.randrange(USERS * ITEMS // self.world) * self.world + self.rank
            if index not in self.seen:
                return index

    def remember(self, index: int) -> None:
        if isinstance(self.seen, set):
            self.seen.add(index)
        else:
            self.seen.append(index)

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.laps.iters):
            if self.laps.late(step) and isinstance(self.seen, set):
                # as restored from a JSON state, which has no sets
                self.seen = sorted(self.seen)
            batch = []
            for _ in range(BATCH):
                index = self.draw()
                self.remember(index)
                batch.append(index)
            yield batch


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 32), nn.Embedding(ITEMS, 32)
        self.user_tower = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.item_tower = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        kernel(46)
        return (self.user_tower(self.user(user)) * self.item_tower(self.item(item))).sum(-1)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    laps = Laps("recommender_seen_list", 1270, 550)
    model = DistributedDataParallel(TwoTowers())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    loader = DataLoader(Pairs(), batch_sampler=FreshPairs(laps, rank, dist.get_world_size()))
    laps.marks.clear()
    laps.tick()
    for user, item, click in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), click.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        laps.tick()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
