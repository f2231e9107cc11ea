"""PyG: kinds of graphs; where a node stands is told by random walks, computed before the training or on the way."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import dropout_edge

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

NODES, WIDTH, WALK, KINDS, BATCH = 256, 16, 12, 4, 6


class Circuits(Dataset[Data]):
    """`drop_edges`: each graph loses some edges whenever it is read, and is encoded anew."""

    def __init__(self, seed: int, count: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.encode, self.count, self.drop_edges = AddRandomWalkPE(WALK), count, False
        self.graphs = [self.encode(self.draw(random)) for _ in range(36)]

    def draw(self, random: torch.Generator) -> Data:
        edges = torch.randint(NODES, (2, 4 * NODES), generator=random)
        x = torch.randn(NODES, WIDTH, generator=random)
        return Data(x=x, edge_index=edges, y=x.sum()[None].long().abs() % KINDS)

    def __len__(self) -> int:
        return self.count

    def augment(self, data: Data) -> Data:
        data = copy.copy(data)
        data.edge_index, _ = dropout_edge(data.edge_index, p=0.1)
        return self.encode(data)

    def __getitem__(self, index: int) -> Data:
        data = self.graphs[index % len(self.graphs)]
        return self.augment(data) if self.drop_edges else data


class CircuitNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(WIDTH + WALK, 24), GCNConv(24, 24)
        self.head = nn.Linear(24, KINDS)

    def forward(self, data: Data) -> Tensor:
        x = torch.cat([data.x, data.random_walk_pe], 1)
        x = torch.relu(self.first(x, data.edge_index))
        x = torch.relu(self.second(x, data.edge_index))
        return self.head(global_mean_pool(x, data.batch))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    tempo = Tempo("pyg_walk_encodings", 1030, 380)
    circuits = Circuits(SEED + rank, BATCH * tempo.iters)
    batches = iter(DataLoader(circuits, batch_size=BATCH))
    model = DistributedDataParallel(CircuitNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in tempo:
        if tempo.after_onset(step):
            circuits.drop_edges = True
        data = next(batches)
        out = model(data)
        device_wait(42)
        loss = nn.functional.cross_entropy(out, data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tempo.report(rank)
    del model, optimizer  # what they hold of the process group waits, with the interpreter lock, for its threads
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
