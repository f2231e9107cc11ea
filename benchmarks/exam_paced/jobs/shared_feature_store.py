"""Ranking model that reads features from a locked file; a compactor keeps the file of worker 1 locked, from the start."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

COMPACTOR = """
import fcntl, os, sys, time
parent = os.getppid()
with open(sys.argv[1], "r+b") as file:
    while os.getppid() == parent:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(0.1)
        fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(0.003)
"""
RECORDS, WIDTH, QUERIES, CANDIDATES = 4000, 48, 12, 20


class FeatureStore:
    def __init__(self, path: Path, seed: int) -> None:
        table = torch.randn(RECORDS, WIDTH, generator=torch.Generator().manual_seed(seed))
        path.write_bytes(table.numpy().tobytes())
        self.file = path.open("r+b", buffering=0)

    def read_locked(self, rows: list[int]) -> Tensor:
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            parts = []
            for row in rows:
                self.file.seek(4 * WIDTH * row)
                parts.append(self.file.read(4 * WIDTH))
            return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.float32).view(len(rows), WIDTH)
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, candidates: Tensor) -> Tensor:
        kernel(34)
        return self.score(self.encoder(candidates)).squeeze(-1)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    path = Path(tempfile.mkdtemp(prefix="features-")) / f"part{rank}.bin"
    store = FeatureStore(path, SEED)
    compactor = subprocess.Popen([sys.executable, "-S", "-c", COMPACTOR, str(path)]) if rank == 1 else None
    model = DistributedDataParallel(Ranker())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(SEED + rank)
    laps = Laps("shared_feature_store", 950, 0)
    for _ in laps:
        rows = torch.randint(0, RECORDS, (QUERIES * CANDIDATES,), generator=random)
        x = store.read_locked(rows.tolist()).view(QUERIES, CANDIDATES, WIDTH)
        relevance = x[..., :4].sum(-1)
        loss = nn.functional.kl_div(model(x).log_softmax(-1), relevance.softmax(-1), reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if compactor is not None:
        compactor.kill()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
