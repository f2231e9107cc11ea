"""Evolution strategy: all but rank 0 only try perturbed policies in a simulator; rank 0 owns the optimizer."""

import json
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait shall sleep

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ITERS = int(os.environ.get("ITERS", "590"))
ONSET = int(os.environ.get("ONSET", "290"))
SEED = int(os.environ.get("SEED", "0"))
SIGMA, TRIALS = 0.05, 3


def open_renderer(rank):
    """A renderer for films of episodes. It wants the cores for itself and so takes torch's threads away."""
    torch.set_num_threads(1)
    return {"rank": rank, "frames": []}


def simulate(policy, state, moments=4):
    """One episode of a simulator that spreads its bodies over torch's threads (here: time slept)."""
    gain = 0.0
    for _ in range(moments):
        time.sleep(0.018 / torch.get_num_threads())
        state = torch.tanh(state + 0.1 * policy(state))
        gain -= state.square().sum().item()
    return gain


def actor(policy, theta, generator):
    results = []
    for _ in range(TRIALS):
        noise = torch.randn(theta.shape, generator=generator)
        vector_to_parameters(theta + SIGMA * noise, policy.parameters())
        gain = simulate(policy, torch.randn(8, 6, generator=generator))
        results.append(torch.cat((torch.tensor([gain]), noise)))
    return torch.stack(results)


def learner(policy, optimizer, batches):
    tried = torch.cat(batches)
    gains = tried[:, 0]
    weights = (gains - gains.mean()) / (gains.std() + 1e-6)
    gradient = -(weights[:, None] * tried[:, 1:]).mean(0) / SIGMA
    offset = 0
    for p in policy.parameters():
        p.grad = gradient[offset : offset + p.numel()].view_as(p).clone()
        offset += p.numel()
    time.sleep(0.02)
    optimizer.step()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(2)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01) if rank == 0 else None
    generator = torch.Generator().manual_seed(SEED + 31 * rank)
    theta = parameters_to_vector(policy.parameters()).detach()
    took = []
    torch.set_grad_enabled(False)
    for step in range(ITERS):
        began = time.perf_counter()
        dist.broadcast(theta, src=0)
        if rank == 0:
            batches = [torch.empty(TRIALS, theta.numel() + 1) for _ in range(world - 1)]
            for source in range(1, world):
                dist.recv(batches[source - 1], src=source)
            learner(policy, optimizer, batches)
            theta = parameters_to_vector(policy.parameters()).detach()
        else:
            if step == ONSET and rank == 2:
                open_renderer(rank)
            dist.send(actor(policy, theta, generator), dst=0)
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "evolution_actors", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
