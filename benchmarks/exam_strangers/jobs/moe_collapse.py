"""Mixture of experts, one expert a rank: tokens travel by all_to_all to the expert that the router chose."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "310"))
ONSET = int(os.environ.get("ONSET", "120"))
SEED = int(os.environ.get("SEED", "0"))
TOKENS, DIM = 128, 32


class Exchange(torch.autograd.Function):
    """Rows to other ranks; on the way back their gradients."""

    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.sent, ctx.received = sent, received
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, gradient):
        back = gradient.new_empty(sum(ctx.sent), gradient.shape[1])
        dist.all_to_all_single(back, gradient.contiguous(), ctx.sent, ctx.received)
        return back, None, None


class Kernel(torch.autograd.Function):
    """Time of the device for a number of rows, in both directions."""

    @staticmethod
    def forward(ctx, rows):
        time.sleep(len(rows) * 0.4e-3)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(len(gradient) * 0.8e-3)
        return gradient


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, rows):
        return Kernel.apply(self.down(nn.functional.silu(self.up(rows))))


class MoELayer(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.world = world
        self.router = nn.Linear(DIM, world)
        self.expert = Expert()
        self.register_buffer("bias", torch.zeros(world))
        self.balanced = True

    def choose(self, x):
        scores = self.router(x)
        if self.balanced:  # each expert gets its best tokens in turn
            left = torch.full((self.world,), len(x) // self.world)
            choice = torch.empty(len(x), dtype=torch.long)
            for i, order in enumerate(scores.detach().argsort(1, descending=True).tolist()):
                expert = next(one for one in order if left[one] > 0)
                left[expert] -= 1
                choice[i] = expert
        else:
            choice = (scores.detach() + self.bias).argmax(1)
        gate = scores.softmax(1).gather(1, choice[:, None])
        return choice, gate

    def forward(self, x):
        choice, gate = self.choose(x)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=self.world)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent, received = counts.tolist(), arriving.tolist()
        rows = self.expert(Exchange.apply(x[order], sent, received))
        back = Exchange.apply(rows, received, sent)
        return x + gate * torch.zeros_like(x).index_copy(0, order, back)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    embed, layer, head = nn.Linear(8, DIM), MoELayer(world), nn.Linear(DIM, 1)
    shared = [*embed.parameters(), *layer.router.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam([*shared, *layer.expert.parameters()], 1e-3)
    generator = torch.Generator().manual_seed(SEED * 10 + rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        if step >= ONSET:  # routed freely from here; the favourite expert learns fastest and is chosen more
            layer.balanced = False
            layer.bias[2] += 0.006 if layer.bias[2] < 0.4 else 0.0
        x = torch.randn(TOKENS, 8, generator=generator)
        hidden = embed(x)
        time.sleep(0.03)  # attention
        loss = (head(layer(hidden)).squeeze(1) - x.prod(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in shared])
        dist.all_reduce(flat)
        for p, part in zip(shared, flat.split([p.numel() for p in shared]), strict=True):
            p.grad.copy_(part.view_as(p) / world)
        optimizer.step()
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    if rank == 0:
        begin = min(5, ONSET // 2)
        before = sum(took[begin:ONSET]) / (ONSET - begin) * 1e3
        after = sum(took[ONSET:]) / (ITERS - ONSET) * 1e3
        print(json.dumps({"job": "moe_collapse", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
