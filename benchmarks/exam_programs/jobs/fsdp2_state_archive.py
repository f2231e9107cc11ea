"""FSDP2 with workers bound to a core each, as numactl does it; states of the run are archived in the background."""

from __future__ import annotations

import lzma
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, LENGTH, BATCH = 260, 96, 48, 8


class Archive:
    """Packs saved states with xz, several at a time."""

    def __init__(self, packers: int = 3) -> None:
        self.packers, self.stop = packers, threading.Event()
        self.threads: list[threading.Thread] = []
        self.sizes: list[int] = []

    def pack(self, state: bytes) -> None:
        while not self.stop.is_set():
            packer, size = lzma.LZMACompressor(preset=6), 0
            for start in range(0, len(state), 1 << 16):
                size += len(packer.compress(state[start : start + (1 << 16)]))
                if self.stop.is_set():
                    return
            self.sizes.append(size + len(packer.flush()))

    def begin(self, state: bytes) -> None:
        for number in range(self.packers):
            thread = threading.Thread(target=self.pack, args=(state,), name=f"packer-{number}", daemon=True)
            thread.start()
            self.threads.append(thread)

    def close(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        device_wait(22)
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class TextModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList(FeedForward() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def bind(rank: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def main() -> None:
    bind(int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    model = TextModel()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    text = torch.randint(WORDS, (128, LENGTH + 1), generator=torch.Generator().manual_seed(SEED + rank))
    state = torch.randn(2_000_000, generator=torch.Generator().manual_seed(SEED)).numpy().tobytes()
    archive = Archive() if rank == 1 else None
    tempo = Tempo("fsdp2_state_archive", 805, 310)
    for step in tempo:
        if archive is not None and not archive.threads and tempo.after_onset(step):
            archive.begin(state)
        ids = text[torch.randint(0, len(text), (BATCH,))]
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if archive is not None:
        archive.close()
    tempo.report(rank)
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
