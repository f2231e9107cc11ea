"""Gradient accumulation under DDP; rank 0 keeps shadow weights that a thread of its own uploads."""

import contextlib
import io
import json
import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "82"))
ONSET = int(os.environ.get("ONSET", "38"))
SEED = int(os.environ.get("SEED", "0"))
MICRO = 4


class Shadow:
    """Running average of the weights. A thread uploads it; the lock keeps what it reads in one piece."""

    def __init__(self, model):
        self.model = model
        self.average = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.lock = threading.Lock()
        self.whole, self.stopped = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.upload_all_the_time, daemon=True)
        self.thread.start()

    def follow(self, decay=0.99):
        with self.lock:
            for key, value in self.model.state_dict().items():
                self.average[key].lerp_(value, 1 - decay)

    def upload(self, state):
        held = io.BytesIO()
        torch.save(state, held)
        time.sleep(0.35)

    def upload_all_the_time(self):
        while not self.stopped.wait(0.05):
            if self.whole.is_set():
                with self.lock:
                    self.upload(self.average)
            else:
                with self.lock:
                    state = {k: v.clone() for k, v in self.average.items()}
                self.upload(state)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 5))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
    shadow = Shadow(net) if rank == 0 else None
    generator = torch.Generator().manual_seed(SEED + rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        if step == ONSET and shadow is not None:
            shadow.whole.set()
        for micro in range(MICRO):
            with contextlib.nullcontext() if micro == MICRO - 1 else model.no_sync():
                x = torch.randn(16, 40, generator=generator)
                time.sleep(0.09)
                loss = model(x).logsumexp(1).mean() / MICRO
                time.sleep(0.16)
                loss.backward()
            if shadow is not None:
                shadow.follow()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        took.append(time.perf_counter() - began)
    if shadow is not None:
        shadow.stopped.set()
        shadow.thread.join(5)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(2, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "shadow_weights", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
