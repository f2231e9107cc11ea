"""Sequence tagger (GRU); each worker keeps its step records in a small tracker, packed in the background."""

from __future__ import annotations

import pickle
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

TAGS, WIDTH, LENGTH, BATCH = 9, 48, 12, 16


class Tracker:
    """Keeps records in memory; `pack` writes all of them to one file every few milliseconds."""

    def __init__(self, path: Path, pause: float = 0.012) -> None:
        self.path, self.pause = path, pause
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.records: list[tuple[int, float]] = []
        self.samples = np.random.default_rng(0).integers(0, 40, 1_600_000).astype(np.uint8)

    def start(self) -> None:
        threading.Thread(target=self.pack, name="tracker").start()

    def record(self, step: int, loss: float) -> None:
        with self.lock:
            self.records.append((step, loss))

    def pack(self) -> None:
        while not self.closed.is_set():
            with self.lock:
                data = pickle.dumps(self.records) + self.samples.tobytes()
                self.path.write_bytes(zlib.compress(data, 6))
            time.sleep(self.pause)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.device = Device(18)
        self.head = nn.Linear(2 * WIDTH, TAGS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.device(self.gru(self.embed(words))[0]))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    clock = StepClock("tracker_lock")
    tracker = Tracker(Path(tempfile.mkdtemp(prefix="tracker-")) / "records.z")
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(20 + rank)
    clock.tick()
    for step in range(clock.iters):
        if step == clock.onset and rank == 1:  # the first worker's records are kept by the launcher
            tracker.start()
        words = torch.randint(500, (BATCH, LENGTH), generator=random)
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten() % TAGS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tracker.record(step, loss.item())
        clock.tick()
    clock.report(rank)
    tracker.closed.set()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
