"""PyG: properties of molecules with GIN; each worker reads its own part of a file that is sorted by size."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WIDTH, BATCH = 32, 32


def molecule(atoms: int, random: torch.Generator) -> Data:
    """A chain with some rings."""
    chain = torch.stack([torch.arange(atoms - 1), torch.arange(1, atoms)])
    rings = torch.randint(atoms, (2, max(1, atoms // 5)), generator=random)
    bonds = torch.cat([chain, rings], 1)
    x = torch.randn(atoms, WIDTH, generator=random)
    return Data(x=x, edge_index=torch.cat([bonds, bonds.flip(0)], 1), y=x.mean()[None])


class MoleculeShard(Dataset[Data]):
    """Drugs first; in the last part of the file proteins follow, of `large` atoms, from entry `drugs` on."""

    def __init__(self, seed: int, count: int, drugs: int, large: int = 320) -> None:
        random = torch.Generator().manual_seed(seed)
        sizes = torch.randint(12, 21, (256,), generator=random).tolist()
        self.small = [molecule(size, random) for size in sizes]
        self.large = [molecule(large, random) for _ in range(64)] if drugs < count else []
        self.count, self.drugs = count, drugs

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Data:
        return self.small[index % 256] if index < self.drugs else self.large[index % 64]


class PropertyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)))
            for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, data: Data) -> Tensor:
        x = data.x
        for conv in self.convs:
            x = torch.relu(conv(x, data.edge_index))
        return self.head(global_add_pool(x, data.batch, size=BATCH))[:, 0]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    tempo = Tempo("pyg_large_molecules", 835, 335)
    count = BATCH * tempo.iters
    drugs = BATCH * tempo.onset if rank == 2 and tempo.onset is not None else count
    loader = DataLoader(MoleculeShard(SEED + rank, count, drugs), batch_size=BATCH)
    model = DistributedDataParallel(PropertyNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batches = iter(loader)
    for _ in tempo:
        data = next(batches)
        out = model(data)
        device_wait(45)
        loss = nn.functional.smooth_l1_loss(out, data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
