"""GraphSAGE with PyG on subgraphs drawn anew in each step; their size differs, at times all nodes are evaluated."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import k_hop_subgraph

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

NODES, DEGREE, WIDTH, KINDS, SEEDS = 3000, 5, 24, 8, 24


def graph() -> Data:
    random = torch.Generator().manual_seed(SEED)
    edges = torch.randint(NODES, (2, NODES * DEGREE), generator=random)
    x = torch.randn(NODES, WIDTH, generator=random)
    return Data(x=x, edge_index=edges, y=x[:, :KINDS].argmax(1))


class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(WIDTH, 32), SAGEConv(32, KINDS)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = torch.relu(self.first(x, edges))
        device_wait(45 + 0.01 * len(x))
        return self.second(x, edges)


def sample(data: Data, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = int(torch.randint(SEEDS // 2, SEEDS * 2, (), generator=random))
    seeds = torch.randperm(NODES, generator=random)[:count]
    nodes, edges, mapped, _ = k_hop_subgraph(seeds, 2, data.edge_index, relabel_nodes=True, num_nodes=NODES)
    return data.x[nodes], edges, mapped, data.y[seeds]


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    right = model(data.x, data.edge_index).argmax(1) == data.y
    model.train()
    return right.float().mean().item()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    data, model = graph(), DistributedDataParallel(Sage())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    random = torch.Generator().manual_seed(SEED + rank)
    best = 0.0
    tempo = Tempo("healthy_pyg_subgraphs", 1240, None)
    for step in tempo:
        x, edges, seeds, kinds = sample(data, random)
        loss = nn.functional.cross_entropy(model(x, edges)[seeds], kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            best = max(best, accuracy(model.module, data))
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
