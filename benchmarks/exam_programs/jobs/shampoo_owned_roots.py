"""Prices of flats with an optimizer in the manner of Shampoo; each worker owns the preconditioners of some layers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

COLUMNS, WIDE, BATCH = 32, 544, 64


class OwnedShampoo(torch.optim.Optimizer):
    """Preconditions the output side of matrices; the owner of a matrix computes its root and sends it to the others.

    `root_every`: so many steps apart.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, root_every: int) -> None:
        super().__init__(params, {"lr": lr})
        self.root_every, self.steps = root_every, 0

    def inverse_root(self, statistics: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(statistics.double())
        return ((vectors * values.clamp_min(1e-8).pow(-0.25)) @ vectors.T).float()

    def update_roots(self, matrices: list[nn.Parameter]) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        for place, matrix in enumerate(matrices):
            if place % world == rank:
                self.state[matrix]["root"].copy_(self.inverse_root(self.state[matrix]["statistics"]))
        for place, matrix in enumerate(matrices):
            dist.broadcast(self.state[matrix]["root"], src=place % world)

    @torch.no_grad()
    def step(self) -> None:
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        matrices = [p for p in params if p.ndim == 2]
        for matrix in matrices:
            state = self.state[matrix]
            if not state:
                state["statistics"], state["root"] = 1e-3 * torch.eye(len(matrix)), torch.eye(len(matrix))
            state["statistics"].mul_(0.95).addmm_(matrix.grad, matrix.grad.T, alpha=0.05)
        if self.steps % self.root_every == 0:
            self.update_roots(matrices)
        for group in self.param_groups:
            for p in group["params"]:
                gradient = self.state[p]["root"] @ p.grad if p.ndim == 2 else p.grad
                p.add_(gradient, alpha=-group["lr"])
        self.steps += 1


class PriceModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.widen, self.narrow = nn.Linear(COLUMNS, 48), nn.Linear(48, WIDE), nn.Linear(WIDE, 24)
        self.leave = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.widen(torch.relu(self.enter(x))))
        device_wait(62)
        return self.leave(torch.relu(self.narrow(x)))[:, 0]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(PriceModel())
    optimizer = OwnedShampoo(model.parameters(), lr=1e-3, root_every=60)
    rows = torch.randn(4096, COLUMNS, generator=torch.Generator().manual_seed(SEED + rank))
    tempo = Tempo("shampoo_owned_roots", 895, 330)
    for step in tempo:
        if tempo.after_onset(step):
            optimizer.root_every = 1
        x = rows[torch.randint(0, len(rows), (BATCH,))]
        loss = nn.functional.smooth_l1_loss(model(x), x[:, :4].sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tempo.report(rank)
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
