"""Keyword spotting; on one machine an agent of the data centre keeps a power cap by halting processes for moments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

AGENT = """
import os, signal, sys, time
target, parent = int(sys.argv[1]), os.getppid()
halted, runs = float(sys.argv[2]), float(sys.argv[3])
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    while os.getppid() == parent:
        os.kill(target, signal.SIGSTOP)
        time.sleep(halted)
        os.kill(target, signal.SIGCONT)
        time.sleep(runs)
except ProcessLookupError:
    sys.exit()
finally:
    os.kill(target, signal.SIGCONT)
"""
KEYWORDS, BATCH = 30, 8


class KeywordNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(40, 64, 5, 2), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 64, 5, 2))
        self.gru = nn.GRU(64, 48, batch_first=True)
        self.head = nn.Linear(48, KEYWORDS)

    def forward(self, sound: Tensor) -> Tensor:
        x, _ = self.gru(torch.relu(self.conv(sound)).transpose(1, 2))
        device_wait(16)
        return self.head(x[:, -1])


def augment(sound: Tensor) -> Tensor:
    start = int(torch.randint(0, 70, ()))
    masked = sound.clone()
    masked[..., start : start + 10] = 0
    return masked + 0.01 * torch.randn_like(masked)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(KeywordNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pool = torch.randn(128, 40, 80, generator=torch.Generator().manual_seed(SEED + rank))
    pids = torch.zeros(dist.get_world_size(), dtype=torch.long)
    pids[rank] = os.getpid()
    dist.all_reduce(pids)
    agent: subprocess.Popen[bytes] | None = None
    tempo = Tempo("asr_power_manager", 550, 230)
    for step in tempo:
        if agent is None and tempo.after_onset(step) and rank == 0:
            agent = subprocess.Popen([sys.executable, "-S", "-c", AGENT, str(int(pids[2])), "0.06", "0.045"])
        optimizer.zero_grad()
        for _ in range(2):
            rows = torch.randint(0, len(pool), (BATCH,))
            nn.functional.cross_entropy(model(augment(pool[rows])), rows % KEYWORDS).backward()
            device_wait(14)
        optimizer.step()
    dist.barrier()
    if agent is not None:
        agent.terminate()
        agent.wait(10)
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
