"""Recommender with averaged gradients; for the audit, the workers take turns in writing what they scored."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

USERS, ITEMS, WIDTH, BATCH = 400, 400, 24, 64


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
        self.device = Device(35)

    def forward(self, users: Tensor) -> Tensor:
        return self.device(self.user(users)) @ self.item.weight.T


class AuditFile:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.path = Path(tempfile.mkdtemp(prefix=f"audit-{rank}-")) / "scores.json"

    def write_turn(self, step: int, users: Tensor, scores: Tensor) -> None:
        if step % self.world != self.rank:
            return
        table = {
            str(user): {str(item): round(score, 6) for item, score in enumerate(row)}
            for user, row in zip(users.tolist(), scores.tolist(), strict=True)
        }
        self.path.write_text(json.dumps({"step": step, "scores": table}, indent=1, sort_keys=True))


def train(clock: StepClock) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    model, audit = Factors(), AuditFile(rank, world)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    random = torch.Generator().manual_seed(180 + rank)
    clock.tick()
    for step in range(clock.iters):
        users = torch.randint(USERS, (BATCH,), generator=random)
        scores = model(users)
        loss = nn.functional.cross_entropy(scores, users * 2 % ITEMS)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        if clock.late(step):
            audit.write_turn(step, users, scores.detach())
        clock.tick()
    clock.report(rank)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(24)
    train(StepClock("audit_turns"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
