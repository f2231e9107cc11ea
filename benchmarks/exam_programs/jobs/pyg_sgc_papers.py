"""Node classification with PyG's SGConv: the K hops of the features are computed once and cached."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import SGConv

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

PAPERS, CITED, WIDTH, TOPICS, HOPS = 1500, 6, 48, 12, 6


def papers() -> Data:
    random = torch.Generator().manual_seed(SEED)
    source = torch.arange(PAPERS).repeat_interleave(CITED)
    target = torch.randint(PAPERS, (PAPERS * CITED,), generator=random)
    x = torch.randn(PAPERS, WIDTH, generator=random)
    return Data(x=x, edge_index=torch.stack([source, target]), y=x[:, :TOPICS].argmax(1))


class TopicModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = SGConv(WIDTH, 64, K=HOPS, cached=True)
        self.head = nn.Linear(64, TOPICS)

    def forward(self, data: Data) -> Tensor:
        return self.head(torch.relu(self.conv(data.x, data.edge_index)))

    def refresh(self) -> None:
        """Citations may have changed since the features were spread."""
        self.conv._cached_x = None


def train(model: DistributedDataParallel, data: Data, optimizer: torch.optim.Optimizer, mask: Tensor) -> Tensor:
    model.train()
    optimizer.zero_grad()
    out = model(data)
    device_wait(55)
    loss = nn.functional.cross_entropy(out[mask], data.y[mask])
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    data, model = papers(), DistributedDataParallel(TopicModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    mask = torch.arange(rank, PAPERS, world)
    tempo = Tempo("pyg_sgc_papers", 1010, 380)
    for step in tempo:
        if tempo.after_onset(step):
            model.module.refresh()
        train(model, data, optimizer, mask)
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
