"""Link prediction with PyG on four workers of two virtual machines, one of which is backed up by snapshots."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GCNConv
from torch_geometric.utils import negative_sampling

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

HYPERVISOR = """
import os, signal, sys, time
machine, parent = [int(pid) for pid in sys.argv[3:]], os.getppid()
snapshot, between = float(sys.argv[1]), float(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
def tell(what):
    for pid in machine:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            pass
try:
    while os.getppid() == parent:
        tell(signal.SIGSTOP)
        time.sleep(snapshot)
        tell(signal.SIGCONT)
        time.sleep(between)
finally:
    tell(signal.SIGCONT)
"""
NODES, WIDTH, EDGES, BATCH = 600, 24, 3600, 256


class LinkModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(WIDTH, 32), GCNConv(32, 16)

    def encode(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x, edges)), edges)

    def forward(self, x: Tensor, edges: Tensor, pairs: Tensor) -> Tensor:
        z = self.encode(x, edges)
        return (z[pairs[0]] * z[pairs[1]]).sum(1)


class Snapshots:
    """The second machine holds the workers of the upper half."""

    def __init__(self, pids: list[int]) -> None:
        half = [str(pid) for pid in pids[len(pids) // 2 :]]
        self.process = subprocess.Popen([sys.executable, "-S", "-c", HYPERVISOR, "0.34", "0.38", *half])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def gather_pids() -> list[int]:
    pids = torch.zeros(dist.get_world_size(), dtype=torch.long)
    pids[dist.get_rank()] = os.getpid()
    dist.all_reduce(pids)
    return pids.tolist()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(LinkModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    random = torch.Generator().manual_seed(SEED + rank)
    x = torch.randn(NODES, WIDTH, generator=random)
    edges = torch.randint(NODES, (2, EDGES), generator=random)
    pids, snapshots = gather_pids(), None
    wanted = torch.cat([torch.ones(BATCH), torch.zeros(BATCH)])
    tempo = Tempo("pyg_link_snapshots", 805, 310)
    for step in tempo:
        if snapshots is None and rank == 0 and tempo.after_onset(step):
            snapshots = Snapshots(pids)
        positive = edges[:, torch.randint(EDGES, (BATCH,), generator=random)]
        negative = negative_sampling(edges, NODES, BATCH)
        scores = model(x, edges, torch.cat([positive, negative], 1))
        device_wait(58)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, wanted[: len(scores)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if snapshots is not None:
        snapshots.close()
    dist.barrier()
    tempo.report(rank)
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
