"""Regression of house prices; the trainer runs in a thread, the main thread of rank 0 shows a console."""

import collections
import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "1350"))
ONSET = int(os.environ.get("ONSET", "500"))
SEED = int(os.environ.get("SEED", "0"))


class Console:
    """One line while all is well; the whole table of recent steps once somebody has pressed `t`."""

    def __init__(self, keep=8000):
        self.rows = collections.deque(maxlen=keep)
        self.table = False
        self.shown = ""

    def report(self, **row):
        self.rows.append(row)

    def refresh(self):
        if not self.rows:
            return
        self.shown = self.render_table() if self.table else self.render_line(self.rows[-1])
        if sys.stdout.isatty():
            print("\x1b[H" + self.shown[-2000:], end="", flush=True)

    @staticmethod
    def render_line(row):
        return f"step {row['step']:>6d} | loss {row['loss']:8.4f} | {row['seconds'] * 1e3:7.1f} ms"

    def render_table(self):
        lines, smooth = [], 0.0
        for row in list(self.rows):
            smooth = 0.9 * smooth + 0.1 * row["loss"]
            bar = "#" * int(min(40, 40 * smooth / 2))
            fields = [f"{name}={value:.5g}".ljust(18) for name, value in sorted(row.items())]
            lines.append(" | ".join(fields) + " " + bar)
        return "\n".join(lines)


class Trainer(threading.Thread):
    def __init__(self, console):
        super().__init__(name="trainer")
        self.console = console
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-2)
        self.generator = torch.Generator().manual_seed(SEED * 10 + self.rank)
        self.took = []

    def batch(self):
        x = torch.randn(64, 13, generator=self.generator)
        return x, x.sum(1, keepdim=True) * 0.3

    def reduce_gradients(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        parts = flat.split([p.numel() for p in self.model.parameters()])
        for p, part in zip(self.model.parameters(), parts, strict=True):
            p.grad.copy_(part.view_as(p))

    def one_step(self):
        x, y = self.batch()
        loss = nn.functional.mse_loss(self.model(x), y)
        time.sleep(0.02)
        self.optimizer.zero_grad()
        loss.backward()
        time.sleep(0.025)
        self.reduce_gradients()
        self.optimizer.step()
        return loss.item()

    def run(self):
        for step in range(ITERS):
            began = time.perf_counter()
            loss = self.one_step()
            seconds = time.perf_counter() - began
            self.took.append(seconds)
            self.console.report(step=step, loss=loss, seconds=seconds, lr=1e-2, rank=self.rank)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    console = Console()
    trainer = Trainer(console)
    for row in range(6000):  # the steps of the run that this one goes on from
        console.report(step=row - 6000, loss=1.0, seconds=0.05, lr=1e-2, rank=trainer.rank)
    trainer.start()
    while trainer.is_alive():
        if trainer.rank == 0:
            console.table = len(trainer.took) >= ONSET
            console.refresh()
        time.sleep(0.01)
    dist.destroy_process_group()
    if trainer.rank == 0:
        took = torch.tensor(trainer.took) * 1e3
        before, after = took[min(10, ONSET // 2) : ONSET].mean().item(), took[ONSET:].mean().item()
        print(json.dumps({"job": "thread_console", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
