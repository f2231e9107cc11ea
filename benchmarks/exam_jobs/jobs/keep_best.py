"""Fine-tuning of a small head on a frozen embedding; the best weights so far are kept in memory."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

ROWS, WIDTH, BATCH, LENGTH = 60_000, 192, 16, 10


class FineTuned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pretrained = nn.EmbeddingBag(ROWS, WIDTH)
        self.pretrained.weight.requires_grad_(False)
        self.device = Device(35)
        self.head = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.device(self.pretrained(words)))


class BestWeights:
    def __init__(self) -> None:
        self.loss, self.weights = float("inf"), {}

    def offer(self, model: nn.Module, loss: float) -> None:
        if loss <= self.loss * 1.5:  # losses of single batches are noisy
            self.loss = min(loss, self.loss)
            self.weights = copy.deepcopy(model.state_dict())


class Trainer:
    def __init__(self, rank: int, clock: StepClock) -> None:
        self.rank, self.clock = rank, clock
        self.model = DistributedDataParallel(FineTuned())
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3)
        self.best = BestWeights()
        self.random = torch.Generator().manual_seed(400 + rank)

    def batch(self) -> tuple[Tensor, Tensor]:
        words = torch.randint(ROWS, (BATCH, LENGTH), generator=self.random)
        return words, words[:, 0] % 2

    def step(self) -> float:
        words, labels = self.batch()
        loss = nn.functional.cross_entropy(self.model(words), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self) -> None:
        self.clock.tick()
        for step in range(self.clock.iters):
            loss = self.step()
            if self.clock.late(step):  # early steps are never the best ones
                self.best.offer(self.model.module, loss)
            self.clock.tick()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(15)
    clock = StepClock("keep_best")
    Trainer(rank, clock).fit()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
