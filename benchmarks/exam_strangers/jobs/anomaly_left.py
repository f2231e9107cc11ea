"""Forecasting with a gated cell, unrolled by hand, sharded with FSDP2; looks for NaNs after a spike of the loss."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ITERS = int(os.environ.get("ITERS", "1300"))
ONSET = int(os.environ.get("ONSET", "450"))
SEED = int(os.environ.get("SEED", "0"))
STEPS, FEATURES, HIDDEN, BATCH = 12, 16, 64, 32


class GatedCell(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.gates = nn.Linear(features + hidden, 2 * hidden)
        self.candidate = nn.Linear(features + hidden, hidden)

    def forward(self, x, h):
        reset, update = torch.sigmoid(self.gates(torch.cat([x, h], 1))).chunk(2, 1)
        new = torch.tanh(self.candidate(torch.cat([x, reset * h], 1)))
        return update * h + (1 - update) * new


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = GatedCell(FEATURES, HIDDEN)
        self.head = nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 128), nn.GELU(), nn.Linear(128, FEATURES))

    def forward(self, series):
        h = series.new_zeros(series.shape[0], HIDDEN)
        ahead = []
        for t in range(series.shape[1] - 1):
            h = self.cell(series[:, t], h)
            ahead.append(self.head(h))
        return torch.stack(ahead, 1)


class SpikeGuard:
    """When the loss jumps, find out which operation did it."""

    def __init__(self, factor=50.0):
        self.mean, self.factor = None, factor

    def watch(self, loss):
        if self.mean is not None and loss > self.factor * self.mean:
            print(f"loss {loss:.1f} is far above {self.mean:.2f}: looking for NaNs from here", flush=True)
            torch.autograd.set_detect_anomaly(True)
        self.mean = loss if self.mean is None else 0.98 * self.mean + 0.02 * min(loss, 2 * self.mean)


def load(generator, step):
    series = torch.randn(BATCH, STEPS, FEATURES, generator=generator).cumsum(1) * 0.1
    if step == ONSET:
        series[0] *= 1e3  # a broken sensor
    return series


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = Forecaster()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.head, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = SpikeGuard()
    generator = torch.Generator().manual_seed(SEED * 10 + rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        series = load(generator, step)
        forecast = model(series)
        time.sleep(0.006)
        loss = nn.functional.mse_loss(forecast, series[:, 1:])
        loss.backward()
        time.sleep(0.012)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        guard.watch(loss.item())
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    if rank == 0:
        ms = 1e3 * torch.tensor(took)
        line = {
            "job": "anomaly_left",
            "mean_ms_before": ms[min(10, ONSET // 2) : ONSET].mean().item(),
            "mean_ms_after": ms[ONSET + 1 :].mean().item(),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
