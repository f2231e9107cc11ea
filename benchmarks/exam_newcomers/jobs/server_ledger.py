"""Parameter server by point-to-point messages: rank 0 keeps the weights, the others compute gradients."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ITERS = int(os.environ.get("ITERS", "1550"))
ONSET = int(os.environ.get("ONSET", "800"))
SEED = int(os.environ.get("SEED", "0"))


class Ledger:
    """Which worker has sent what, so that it can be told how much of the whole it has given."""

    def __init__(self, keep):
        self.keep, self.entries = keep, []

    def record(self, step, worker, gradient):
        chunks = gradient[: gradient.numel() // 256 * 256].view(256, -1).norm(dim=1).tolist()
        self.entries.extend((step, worker, size) for size in chunks)
        if self.keep is not None and len(self.entries) > self.keep:
            del self.entries[: -self.keep]

    def share_of(self, worker):
        total = given = 0.0
        for _, sender, size in self.entries:
            total += size
            if sender == worker:
                given += size
        return given / (total + 1e-9)


def serve(weights, momentum, ledger, step, workers):
    gradients = []
    for worker in workers:
        gradient = torch.empty_like(weights)
        dist.recv(gradient, src=worker)
        ledger.record(step, worker, gradient)
        gradients.append(gradient)
    shares = {worker: ledger.share_of(worker) for worker in workers}
    momentum.mul_(0.9).add_(torch.stack(gradients).mean(0))
    weights.sub_(momentum, alpha=0.01)
    for worker in workers:
        dist.send(torch.cat((weights, torch.tensor([shares[worker]]))), dst=worker)


def work(model, generator, weights):
    vector_to_parameters(weights, model.parameters())
    x = torch.randn(16, 20, generator=generator)
    time.sleep(0.018)
    loss = nn.functional.mse_loss(model(x), x.cumsum(1)[:, :4])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    time.sleep(0.025)
    dist.send(torch.cat([g.flatten() for g in gradients]), dst=0)
    answer = torch.empty(weights.numel() + 1)
    dist.recv(answer, src=0)
    return answer[:-1].clone()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    weights = parameters_to_vector(model.parameters()).detach().clone()
    momentum, ledger = torch.zeros_like(weights), Ledger(keep=3 * 256)
    generator = torch.Generator().manual_seed(SEED + 13 * rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        if rank == 0:
            if step == ONSET:
                ledger.keep = None
            serve(weights, momentum, ledger, step, range(1, world))
        else:
            weights = work(model, generator, weights)
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "server_ledger", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
