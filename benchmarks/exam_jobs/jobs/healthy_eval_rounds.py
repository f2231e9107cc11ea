"""Image classifier with an evaluation every 25 iterations and a small checkpoint after each of them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

BATCH, SIZE = 8, 16


def pictures(count: int, seed: int) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 3, SIZE, SIZE, generator=random), torch.randint(10, (count,), generator=random)
    )


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.device = Device(30)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.device(self.body(x)).mean(dim=(2, 3)))


class Trainer:
    def __init__(self, rank: int, clock: StepClock) -> None:
        self.rank, self.clock = rank, clock
        self.model = DistributedDataParallel(Net())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.data = pictures(clock.iters * BATCH * dist.get_world_size(), 1)
        self.held_out = DataLoader(pictures(3 * BATCH, 2), BATCH)
        self.path = Path(tempfile.mkdtemp(prefix="net-")) / "last.pt"

    @torch.no_grad()
    def evaluate(self) -> float:
        self.model.eval()
        right = torch.zeros(())
        for images, labels in self.held_out:
            right += (self.model.module(images).argmax(dim=1) == labels).sum()
        dist.all_reduce(right)
        self.model.train()
        return right.item() / (3 * BATCH * dist.get_world_size())

    def save(self) -> None:
        if self.rank == 0:
            torch.save(self.model.module.state_dict(), self.path)

    def fit(self) -> None:
        loader = DataLoader(self.data, BATCH, sampler=DistributedSampler(self.data, shuffle=True))
        self.clock.tick()
        for step, (images, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if (step + 1) % 25 == 0:
                accuracy = self.evaluate()
                self.save()
                if self.rank == 0:
                    print(f"step {step + 1}: accuracy {accuracy:.3f}", flush=True)
            self.clock.tick()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(27)
    clock = StepClock("healthy_eval_rounds")
    Trainer(dist.get_rank(), clock).fit()
    clock.report(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
