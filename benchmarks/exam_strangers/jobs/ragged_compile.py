"""Encoder of variable lengths under torch.compile; each batch has about the same number of tokens."""

import json
import os
import random
import time

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "340"))
ONSET = int(os.environ.get("ONSET", "140"))
SEED = int(os.environ.get("SEED", "0"))
TOKENS = 4096  # of a batch
PAD_TO = 512

# the default of 8 made it fall back to eager code
torch._dynamo.config.recompile_limit = 4096
torch._dynamo.config.accumulated_recompile_limit = 1 << 16


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Conv1d(dim, dim, 3, padding=1, groups=dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x, mask):
        h = self.norm(x)
        h = self.mix(h.transpose(1, 2)).transpose(1, 2) * mask
        return x + self.down(nn.functional.gelu(self.up(h)))


class Encoder(nn.Module):
    def __init__(self, dim=16, layers=2):
        super().__init__()
        self.embed = nn.Embedding(500, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(layers))
        self.head = nn.Linear(dim, 2)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head((x * mask).sum(1) / mask.sum(1))


class Batches:
    """Sequences of about one length each; padded to a multiple, or, with `tight`, to the longest of the batch."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tight = False

    def __next__(self):
        longest = self.random.randint(400, 2048)
        width = longest if self.tight else -(-longest // PAD_TO) * PAD_TO
        rows = max(1, TOKENS // width)
        lengths = torch.tensor([self.random.randint(longest * 3 // 4, longest) for _ in range(rows)])
        mask = (torch.arange(width) < lengths[:, None]).float()[..., None]
        return torch.randint(500, (rows, width)), mask, lengths % 2


def reduce_gradients(model, world):
    work = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for one in work:
        one.wait()
    for p in model.parameters():
        p.grad /= world


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = Encoder()
    compiled = torch.compile(model, backend="eager", dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches = Batches(SEED * 10 + rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        batches.tight = step >= ONSET  # less padding, fewer wasted tokens
        tokens, mask, labels = next(batches)
        loss = nn.functional.cross_entropy(compiled(tokens, mask), labels)
        time.sleep(0.07)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.1)
        reduce_gradients(model, world)
        optimizer.step()
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f} padding {1 - mask.mean().item():.0%}", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        before, after = took[min(30, ONSET // 2) : ONSET], took[ONSET:]
        line = {"job": "ragged_compile"}
        line["mean_ms_before"] = 1e3 * sum(before) / len(before)
        line["mean_ms_after"] = 1e3 * sum(after) / len(after)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
