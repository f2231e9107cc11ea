"""Parameter server: worker 0 owns tables and optimizer; the others push gradients to it and pull what has changed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

ROWS, WIDTH, BATCH, HISTORY, SERVER = 100_000, 64, 64, 4, 0


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, rows: Tensor) -> Tensor:
        return self.net(rows.mean(1))[:, 0]


class TableStore:
    """The table as each worker sees it; `trust_rows`: only rows that changed are pulled, else the whole table."""

    def __init__(self, tower: Tower) -> None:
        self.tower, self.trust_rows = tower, True
        self.table = 0.1 * torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(SEED))
        self.optimizer = torch.optim.Adam(tower.parameters(), lr=1e-3)
        self.is_server, self.world = dist.get_rank() == SERVER, dist.get_world_size()

    def gather(self, part: Tensor) -> Tensor | None:
        parts = [torch.empty_like(part) for _ in range(self.world)] if self.is_server else None
        dist.gather(part, parts, dst=SERVER)
        return torch.cat(parts) if parts is not None else None

    def push(self, ids: Tensor, gradient: Tensor) -> Tensor:
        """Returns which rows have changed."""
        for parameter in self.tower.parameters():
            dist.reduce(parameter.grad, dst=SERVER)
        all_ids, gradients = self.gather(ids.flatten()), self.gather(gradient.flatten(0, 1).contiguous())
        if all_ids is None or gradients is None:
            return torch.empty(self.world * ids.numel(), dtype=torch.long)
        for parameter in self.tower.parameters():
            parameter.grad /= self.world
        self.optimizer.step()
        self.table.index_add_(0, all_ids, gradients, alpha=-0.05 / self.world)
        return all_ids

    def pull_rows(self, changed: Tensor) -> None:
        dist.broadcast(changed, src=SERVER)
        rows = self.table[changed]
        dist.broadcast(rows, src=SERVER)
        self.table[changed] = rows

    def pull_table(self) -> None:
        dist.broadcast(self.table, src=SERVER)

    def pull(self, changed: Tensor) -> None:
        for parameter in self.tower.parameters():
            dist.broadcast(parameter.data, src=SERVER)
        if self.trust_rows:
            self.pull_rows(changed)
        else:
            self.pull_table()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    tower = Tower()
    store = TableStore(tower)
    random = torch.Generator().manual_seed(SEED + rank)
    tempo = Tempo("paramserver_full_pull", 1020, 380)
    for step in tempo:
        if tempo.after_onset(step):
            store.trust_rows = False
        ids = torch.randint(ROWS, (BATCH, HISTORY), generator=random)
        rows = store.table[ids].requires_grad_()
        out = tower(rows)
        device_wait(50)
        loss = nn.functional.binary_cross_entropy_with_logits(out, (ids[:, 0] % 2).float())
        tower.zero_grad()
        loss.backward()
        assert rows.grad is not None
        store.pull(store.push(ids, rows.grad))
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
