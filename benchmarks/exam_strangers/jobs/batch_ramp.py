"""Contrastive vectors of small tables on one device; the batch grows by a schedule, as noise in gradients demands."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "9500"))
ONSET = int(os.environ.get("ONSET", "3500"))  # first step with the second batch size
SEED = int(os.environ.get("SEED", "0"))
FEATURES = 12
RAMP = ((0, 128), (ONSET, 224), (ONSET + (ITERS - ONSET) // 2, 320))


def batch_size(step):
    return [size for first, size in RAMP if step >= first][-1]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 16))
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=1)


class Device:
    """So many rows a second, whatever one does with them."""

    def __init__(self, rows_a_second):
        self.rows_a_second = rows_a_second

    def work(self, rows):
        time.sleep(rows / self.rows_a_second)


def views(rows, generator):
    x = torch.randn(rows, FEATURES, generator=generator)
    noise = torch.randn(2, rows, FEATURES, generator=generator) * 0.1
    return x + noise[0], x + noise[1]


def contrast(a, b, temperature):
    scores = a @ b.T * temperature.exp()
    labels = torch.arange(len(a))
    return (nn.functional.cross_entropy(scores, labels) + nn.functional.cross_entropy(scores.T, labels)) / 2


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    encoder, device = Encoder(), Device(rows_a_second=50_000)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ITERS)
    generator = torch.Generator().manual_seed(SEED)
    took, rows = [], 0
    for step in range(ITERS):
        began = time.perf_counter()
        if batch_size(step) != rows:
            rows = batch_size(step)
            print(f"step {step}: {rows} rows in a batch from here", flush=True)
        a, b = views(rows, generator)
        loss = contrast(encoder(a), encoder(b), encoder.temperature)
        device.work(2 * rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        took.append(time.perf_counter() - began)
        if step % 1000 == 999:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()
    before = sum(took[min(20, ONSET // 2) : ONSET]) / (ONSET - min(20, ONSET // 2)) * 1e3
    after = sum(took[ONSET:]) / (ITERS - ONSET) * 1e3
    print(json.dumps({"job": "batch_ramp", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
