"""Weather emulator with FSDP2: a sharded checkpoint and a short validation every ten steps, as always."""

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ITERS = int(os.environ.get("ITERS", "100"))
ONSET = int(os.environ.get("ONSET", "30"))  # only where the two means are split: three checkpoints are before it
SEED = int(os.environ.get("SEED", "0"))
CELLS, DIM, EVERY = 64, 192, 10


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.space = nn.Linear(CELLS, CELLS)
        self.channel = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        time.sleep(0.2)
        x = x + self.space(x.transpose(1, 2)).transpose(1, 2)
        return x + self.channel(x)


def rollout(model, state, hours):
    loss = 0.0
    for _ in range(hours):
        following = torch.roll(state, 1, dims=1)
        predicted = model(state)
        loss = loss + nn.functional.l1_loss(predicted, following)
        state = predicted
    return loss / hours


@torch.no_grad()
def validate(model, states):
    losses = torch.stack([rollout(model, state, 1) for state in states])
    total = losses.mean()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def save(model, optimizer, folder, rank, step):
    shard = {name: p.to_local() for name, p in model.named_parameters()}
    moments = [
        {key: value.to_local() if hasattr(value, "to_local") else value for key, value in state.items()}
        for state in optimizer.state.values()
    ]
    target = folder / f"shard-{rank}.pt"
    torch.save({"model": shard, "optimizer": moments, "step": step}, target.with_suffix(".part"))
    time.sleep(0.5)  # upload
    target.with_suffix(".part").rename(target)
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*(Mixer() for _ in range(3)))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED * 10 + rank)
    held_out = [torch.randn(2, CELLS, DIM, generator=generator) for _ in range(2)]
    folder = Path(tempfile.mkdtemp(prefix=f"weather-{rank}-"))
    took = []
    for step in range(1, ITERS + 1):
        began = time.perf_counter()
        state = torch.randn(4, CELLS, DIM, generator=generator)
        loss = rollout(model, state, hours=1)
        loss.backward()
        time.sleep(0.55)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == 0:
            score = validate(model, held_out)
            save(model, optimizer, folder, rank, step)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} held out {score:.4f}", flush=True)
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    shutil.rmtree(folder)
    if rank == 0:
        before, after = torch.tensor(took[:ONSET][1:]), torch.tensor(took[ONSET:])
        means = {"mean_ms_before": before.mean().item() * 1e3, "mean_ms_after": after.mean().item() * 1e3}
        print(json.dumps({"job": "regular_checkpoint", **means}), flush=True)


if __name__ == "__main__":
    main()
