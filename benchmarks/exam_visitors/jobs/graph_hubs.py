"""Links of a graph, sampled by hand: each rank walks through its own nodes and draws neighbours of neighbours."""

import json
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "960"))
ONSET = int(os.environ.get("ONSET", "470"))
SEED = int(os.environ.get("SEED", "0"))
NODES, HUBS, HUB_DEGREE, DEGREE, SEEDS, FANOUT = 12000, 40, 10000, 8, 64, 6


class Graph:
    """Neighbours of each node. The first 40 nodes know thousands of others, as celebrities do."""

    def __init__(self):
        draw = random.Random(SEED)
        self.neighbours = [draw.choices(range(HUBS, NODES), k=DEGREE) for _ in range(NODES)]
        for hub in range(HUBS):
            self.neighbours[hub] = draw.sample(range(HUBS, NODES), HUB_DEGREE)


class NeighbourSampler:
    def __init__(self, graph, seed):
        self.graph, self.draw = graph, random.Random(seed)

    def one_hop(self, node, seen):
        fresh = [other for other in self.graph.neighbours[node] if other not in seen and other != node]
        return self.draw.sample(fresh, min(FANOUT, len(fresh)))

    def sample(self, seeds):
        seen, edges = set(seeds), []
        for node in seeds:
            for other in self.one_hop(node, seen):
                edges.append((node, other))
                edges.extend((other, third) for third in self.one_hop(other, seen))
        return torch.tensor(edges)


class LinkModel(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.table = nn.Embedding(NODES, width)
        self.mix = nn.Linear(width, width)

    def forward(self, edges):
        time.sleep(0.05)
        here, there = self.mix(self.table(edges[:, 0])), self.table(edges[:, 1])
        return (here * there).sum(-1)


def seeds_of(step, rank, draw):
    """The share of this rank. The share of rank 1 comes to the hubs at the onset; the others' have none."""
    if rank == 1 and step >= ONSET:
        return draw.choices(range(HUBS), k=SEEDS)
    return draw.choices(range(HUBS, NODES), k=SEEDS)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    sampler = NeighbourSampler(Graph(), SEED + 10 * rank)
    model = DistributedDataParallel(LinkModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw, took = random.Random(SEED + rank), []
    for step in range(ITERS):
        began = time.perf_counter()
        edges = sampler.sample(seeds_of(step, rank, draw))
        wrong = torch.stack((edges[:, 0], torch.randint(NODES, (len(edges),))), dim=1)
        scores = model(torch.cat((edges, wrong)))
        target = torch.cat((torch.ones(len(edges)), torch.zeros(len(edges))))
        loss = nn.functional.binary_cross_entropy_with_logits(scores, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.045)
        optimizer.step()
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "graph_hubs", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
