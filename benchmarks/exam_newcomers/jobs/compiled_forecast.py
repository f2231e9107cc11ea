"""Forecast of loads with a compiled model on one rank; now and then it is evaluated on held-out weeks."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "774"))
ONSET = int(os.environ.get("ONSET", "344"))
SEED = int(os.environ.get("SEED", "0"))
EVALUATE_EVERY, EVALUATE_ON = 86, 20


class Forecast(nn.Module):
    def __init__(self, past=96, future=24, width=64):
        super().__init__()
        self.inward = nn.Linear(past, width)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, future)

    def forward(self, x):
        h = torch.tanh(self.inward(x))
        for layer in self.middle:
            h = h + self.drop(torch.nn.functional.silu(layer(h)))
        return self.out(h)


def weeks(generator, batch=32):
    phase = 6.28 * torch.rand(batch, 1, generator=generator)
    series = torch.sin(torch.arange(120) / 24 * 6.28 + phase) + 0.1 * torch.randn(batch, 120, generator=generator)
    return series[:, :96], series[:, 96:]


@torch.no_grad()
def evaluate(model, held_out):
    model.eval()
    total = 0.0
    for past, future in held_out:
        time.sleep(0.045)
        total += nn.functional.l1_loss(model(past), future).item()
    model.train()
    return total / len(held_out)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = torch.compile(Forecast())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ITERS)
    generator = torch.Generator().manual_seed(SEED)
    held_out = [weeks(generator) for _ in range(EVALUATE_ON)]
    evaluate(model, held_out)
    took, best = [], float("inf")
    for step in range(ITERS):
        began = time.perf_counter()
        past, future = weeks(generator)
        time.sleep(0.045)
        loss = nn.functional.mse_loss(model(past), future)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.055)
        optimizer.step()
        scheduler.step()
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            best = min(best, evaluate(model, held_out))
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
    before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
    print(json.dumps({"job": "compiled_forecast", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
