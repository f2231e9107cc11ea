"""Small tabular net, many quick steps; gradients are averaged by hand in one flat buffer."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "6900"))
ONSET = int(os.environ.get("ONSET", "3800"))
SEED = int(os.environ.get("SEED", "0"))


def build(width=24, depth=8):
    layers = [nn.Linear(12, width)]
    for _ in range(depth):
        layers += [nn.SiLU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.SiLU(), nn.Linear(width, 1))


class NormBoard:
    """The norm of each parameter and of its gradient over all ranks, as numbers for a board."""

    def __init__(self, names):
        self.names, self.latest = names, {}

    def __call__(self, optimizer, args, kwargs):
        world = dist.get_world_size()
        for group in optimizer.param_groups:
            for name, parameter in zip(self.names, group["params"], strict=False):
                for kind, value in (("weight", parameter.detach()), ("grad", parameter.grad)):
                    norm = value.norm()
                    dist.all_reduce(norm)
                    self.latest[f"{kind}/{name}"] = norm.item() / world


def average_gradients(parameters, world):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for p in parameters:
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = build()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    board = NormBoard([name for name, _ in model.named_parameters()])
    generator = torch.Generator().manual_seed(SEED + 7 * rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        if step == ONSET:
            optimizer.register_step_post_hook(board)
        rows = torch.randn(32, 12, generator=generator)
        target = rows.sum(1, keepdim=True).sin()
        time.sleep(0.002)
        loss = nn.functional.mse_loss(model(rows), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.002)
        average_gradients(parameters, world)
        optimizer.step()
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "norm_board", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
