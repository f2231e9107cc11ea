"""MLP-Mixer of timm, each worker bound to a core of its own; somebody's archiver is bound to one of these cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from timm.models.mlp_mixer import MlpMixer
from timm.utils import AverageMeter
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

ARCHIVER = """
import os, sys, zlib
os.sched_setaffinity(0, {int(sys.argv[1])})
parent, chunk = os.getppid(), os.urandom(1 << 14) * 4
while os.getppid() == parent:
    zlib.compress(chunk, 6)
"""
SIDE, KINDS, BATCH = 32, 10, 24


def bind_to_core(local_rank: int) -> int:
    cores = sorted(os.sched_getaffinity(0))
    core = cores[local_rank % len(cores)]
    os.sched_setaffinity(0, {core})
    return core


def start_archivers(core: int) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-S", "-c", ARCHIVER, str(core)]) for _ in range(3)]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, target: Tensor) -> float:
    output = model(images)
    device_wait(35)
    loss = nn.functional.cross_entropy(output, target, label_smoothing=0.1)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main() -> None:
    torch.set_num_threads(1)
    core = bind_to_core(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    mixer = MlpMixer(num_classes=KINDS, img_size=SIDE, patch_size=4, num_blocks=3, embed_dim=64)
    model = DistributedDataParallel(mixer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pool = torch.randn(256, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED + rank))
    losses = AverageMeter()
    archivers: list[subprocess.Popen[bytes]] = []
    tempo = Tempo("timm_noisy_neighbour", 870, 350)
    for step in tempo:
        if tempo.after_onset(step) and rank == 1 and not archivers:
            archivers = start_archivers(core)
        rows = torch.randint(0, len(pool), (BATCH,))
        losses.update(train_step(model, optimizer, pool[rows], rows % KINDS), BATCH)
    for process in archivers:
        process.kill()
        process.wait(10)
    tempo.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
