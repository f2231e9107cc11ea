"""A perceptron whose forward and loss torch compiles, under DDP (torchrun).

a  from step 150 on: rank 1 checks the data of each batch against a table, row by row, ten times
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from steps import Steps
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH = 16, 512
steps = Steps("compiled_mlp")


class Ones(Dataset[Tensor]):
    def __len__(self) -> int:
        return BATCH * (steps.count + 1)

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((WIDTH,), index % 7 / 7)


def compare_with_table(batch: Tensor) -> int:
    table = [float(number % 7) / 7 for number in range(7)]
    return sum(any(abs(value - known) < 1e-6 for known in table) for row in batch.tolist() for value in row[:64])


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    @torch.compile
    def loss_of(batch: Tensor) -> Tensor:
        return (model(batch) - batch).square().mean()

    for batch in DataLoader(Ones(), BATCH):
        if steps.faulty(1):
            for _ in range(10):
                compare_with_table(batch)
        loss_of(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.end()
        if steps.done == steps.count:
            break
    steps.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
