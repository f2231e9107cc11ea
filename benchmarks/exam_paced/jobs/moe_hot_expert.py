"""Mixture of experts, one expert a worker, tokens exchanged by all_to_all; the router collapses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

TOKENS, WIDTH = 96, 64
HOT = 2


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, given: list[int], taken: list[int]) -> Tensor:
        ctx.splits = given, taken
        out = rows.new_empty(sum(taken), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), taken, given)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        given, taken = ctx.splits
        out = grad.new_empty(sum(given), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), given, taken)
        return out, None, None


class ExpertGemm(torch.autograd.Function):
    """Grouped product of an accelerator; its time goes with the number of rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        kernel(0.1 * len(rows))
        return rows @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        rows, weight = ctx.saved_tensors
        kernel(0.2 * len(rows))
        return grad @ weight.t(), rows.t() @ grad


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rise = nn.Parameter(torch.randn(WIDTH, 4 * WIDTH) / 8)
        self.fall = nn.Parameter(torch.randn(4 * WIDTH, WIDTH) / 16)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.relu(ExpertGemm.apply(rows, self.rise)) @ self.fall


class MoeLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, dist.get_world_size())
        self.expert = Expert()
        self.register_buffer("bias", torch.zeros(dist.get_world_size()))

    def forward(self, x: Tensor) -> Tensor:
        weights = (0.2 * self.router(x) + self.bias + torch.randn(len(x), dist.get_world_size())).softmax(-1)
        gate, choice = weights.max(-1)
        order = choice.argsort()
        counts = torch.bincount(choice, minlength=dist.get_world_size())
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        given, taken = counts.tolist(), arriving.tolist()
        rows = self.expert(Exchange.apply(x[order], given, taken))
        back = Exchange.apply(rows, taken, given)
        return x + torch.zeros_like(x).index_copy(0, order, back) * gate[:, None]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, WIDTH)
        self.moe = MoeLayer()
        self.head = nn.Linear(WIDTH, 500)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.moe(self.embedding(words)))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED + rank)
    model = Model()
    shared = [p for name, p in model.named_parameters() if "expert" not in name]
    for p in shared:
        dist.broadcast(p.data, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    laps = Laps("moe_hot_expert", 1190, 540)
    for step in laps:
        if laps.late(step):
            model.moe.bias[HOT] = 2.2
        words = torch.randint(0, 500, (TOKENS,))
        loss = nn.functional.cross_entropy(model(words), (words + 1) % 500)
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in shared])
        dist.all_reduce(flat)
        for p, part in zip(shared, flat.split([p.numel() for p in shared]), strict=True):
            p.grad.copy_(part.view_as(p) / dist.get_world_size())
        kernel(10)
        optimizer.step()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
