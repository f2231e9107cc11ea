"""A graph network in PyG with its own data loader, under DDP (torchrun).

a  from step 150 on: all ranks look for each edge's way back in a list of tuples
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from steps import Steps
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

BATCH, NODES, EDGES, WIDTH = 8, 60, 240, 128
steps = Steps("pyg_gcn")


class Graphs(torch.utils.data.Dataset[Data]):
    def __len__(self) -> int:
        return BATCH * (steps.count + 1)

    def share_of_mutual_edges(self, edges: Tensor) -> float:
        pairs = [tuple(pair) for pair in edges.t().tolist()]
        return sum((to, start) in pairs for start, to in pairs) / len(pairs)

    def __getitem__(self, index: int) -> Data:
        generator = torch.Generator().manual_seed(index)
        edges = torch.randint(NODES, (2, EDGES), generator=generator)
        target = torch.tensor([self.share_of_mutual_edges(edges) if steps.faulty() else 0.03])
        return Data(x=torch.randn(NODES, WIDTH, generator=generator), edge_index=edges, y=target)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GCNConv(WIDTH, WIDTH) for _ in range(4))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, batch: Data) -> Tensor:
        x = batch.x
        for layer in self.layers:
            x = layer(x, batch.edge_index).relu()
        return self.last(global_mean_pool(x, batch.batch)).squeeze(1)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Network())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for batch in DataLoader(Graphs(), batch_size=BATCH):
        loss = (model(batch) - batch.y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.end()
        if steps.done == steps.count:
            break
    steps.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
