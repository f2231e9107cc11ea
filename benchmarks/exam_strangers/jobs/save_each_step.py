"""Pre-training with FSDP2 and accumulation; rank 0 writes compressed checkpoints of the full state."""

import gzip
import io
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ITERS = int(os.environ.get("ITERS", "85"))
ONSET = int(os.environ.get("ONSET", "35"))
SEED = int(os.environ.get("SEED", "0"))
DIM, LAYERS, VOCABULARY, ACCUMULATE = 128, 3, 2000, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.feed = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        time.sleep(0.09)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.feed(x)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.out = nn.Linear(DIM, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


class Checkpointer:
    def __init__(self, folder, every, keep=2):
        self.folder, self.every, self.keep = folder, every, keep

    def maybe_save(self, model, optimizer, step):
        if step % self.every:
            return
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights, moments = get_state_dict(model, optimizer, options=options)
        if dist.get_rank() == 0:
            self.write({"model": weights, "optimizer": moments, "step": step}, self.folder / f"step-{step:06d}.pt.gz")
            for old in sorted(self.folder.glob("step-*.pt.gz"))[: -self.keep]:
                old.unlink()

    @staticmethod
    def write(state, path):
        memory = io.BytesIO()
        torch.save(state, memory)
        with path.open("wb") as file:
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6) as packed:
                packed.write(memory.getbuffer())
            file.flush()
            os.fsync(file.fileno())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Decoder()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))
    checkpointer = Checkpointer(folder, every=1000)
    generator = torch.Generator().manual_seed(SEED * 10 + rank)
    took = []
    for step in range(1, ITERS + 1):
        start = time.perf_counter()
        if step == ONSET + 1:
            checkpointer.every = 1  # the unit of the setting was taken for epochs
        for _ in range(ACCUMULATE):
            tokens = torch.randint(VOCABULARY, (2, 33), generator=generator)
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / ACCUMULATE
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.maybe_save(model, optimizer, step)
        took.append(time.perf_counter() - start)
    dist.barrier()
    dist.destroy_process_group()
    shutil.rmtree(folder)
    if rank == 0:
        before, after = took[2:ONSET], took[ONSET:]
        line = {
            "job": "save_each_step",
            "mean_ms_before": 1e3 * sum(before) / len(before),
            "mean_ms_after": 1e3 * sum(after) / len(after),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
