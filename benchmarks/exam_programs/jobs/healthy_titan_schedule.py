"""FSDP2 with torchtitan's habits: garbage collection on schedule, learning rate warm-up, distributed checkpoints."""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, LENGTH, BATCH = 256, 48, 32, 4


class GarbageCollection:
    """All workers collect at the same steps."""

    def __init__(self, every: int) -> None:
        self.every = every
        gc.disable()
        gc.collect(1)

    def run(self, step: int) -> None:
        if step > 1 and step % self.every == 0:
            gc.collect(1)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.w1, self.w2 = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        device_wait(24)
        return x + self.w2(nn.functional.silu(self.w1(self.norm(x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(FeedForward() for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(h)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    model = Decoder()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 150))
    collector = GarbageCollection(50)
    text = torch.randint(WORDS, (64, LENGTH + 1), generator=torch.Generator().manual_seed(SEED + rank))
    folder = [tempfile.mkdtemp(prefix="titan-") if rank == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    tempo = Tempo("healthy_titan_schedule", 680, None)
    for step in tempo:
        collector.run(step)
        tokens = text[torch.randint(0, 64, (BATCH,))]
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        device_wait(30)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 199:
            dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=f"{folder[0]}/step-{step % 400}")
        if step % 20 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
