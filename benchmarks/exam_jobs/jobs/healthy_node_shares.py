"""Graph network on one large graph; the nodes are cut in parts that are not quite of the same size."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

FEATURES, WIDTH, EDGES_PER_NODE = 16, 32, 6
PARTS = [300, 320, 310, 340]  # nodes for each worker, from the partitioner


class GraphLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        received = torch.zeros_like(x).scatter_add(0, edges[1][:, None].expand(-1, x.shape[1]), x[edges[0]])
        return torch.relu(self.own(x) + self.others(received / EDGES_PER_NODE))


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphLayer(FEATURES, WIDTH), GraphLayer(WIDTH, WIDTH)
        self.device = Device(35)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.head(self.device(self.second(self.first(x, edges), edges)))


class Part:
    def __init__(self, rank: int) -> None:
        random = torch.Generator().manual_seed(260 + rank)
        nodes = PARTS[rank % len(PARTS)]
        self.features = torch.randn(nodes, FEATURES, generator=random)
        self.edges = torch.randint(nodes, (2, nodes * EDGES_PER_NODE), generator=random)
        self.labels = self.features[:, :4].argmax(dim=1)


def average_gradients(model: nn.Module) -> None:
    handles = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for parameter, handle in zip(model.parameters(), handles, strict=True):
        handle.wait()
        parameter.grad /= dist.get_world_size()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(29)
    clock = StepClock("healthy_node_shares")
    part, model = Part(rank), GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    clock.tick()
    for step in range(clock.iters):
        logits = model(part.features, part.edges)
        loss = nn.functional.cross_entropy(logits, part.labels)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
