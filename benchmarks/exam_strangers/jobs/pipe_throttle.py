"""A pipeline of three stages by send and recv, four micro-batches (all forward, then all backward)."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "420"))
ONSET = int(os.environ.get("ONSET", "150"))
SEED = int(os.environ.get("SEED", "0"))
MICRO, ROWS, DIM = 4, 8, 64


class Board:
    """Stands in for the accelerator. One sits above the power supply: its clock falls when that grows hot."""

    def __init__(self, place):
        self.place = place
        self.clock = 1.0

    def tick(self, step):
        if self.place == 1 and step >= ONSET:
            self.clock = max(0.5, self.clock - 0.02)

    def execute(self, milliseconds):
        time.sleep(milliseconds / 1e3 / self.clock)


class Stage:
    def __init__(self, rank, world, board):
        self.rank, self.board = rank, board
        self.is_first, self.is_last = rank == 0, rank == world - 1
        layers = [nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM)]
        self.body = nn.Sequential(*layers, *([nn.Linear(DIM, 10)] if self.is_last else []))
        self.kept = []

    def forward_micro(self, x, labels):
        if not self.is_first:
            x = torch.empty(ROWS, DIM)
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
        self.board.execute(9)
        y = self.body(x)
        if self.is_last:
            y = nn.functional.cross_entropy(y, labels) / MICRO
        else:
            dist.send(y.detach(), self.rank + 1)
        self.kept.append((x, y))

    def backward_micro(self):
        x, y = self.kept.pop(0)
        if self.is_last:
            gradient = None
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, self.rank + 1)
        self.board.execute(18)
        y.backward(gradient)
        if not self.is_first:
            dist.send(x.grad, self.rank - 1)
        return float(y.detach()) if self.is_last else 0.0


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)
    board = Board(rank)
    stage = Stage(rank, world, board)
    optimizer = torch.optim.AdamW(stage.body.parameters(), 1e-3)
    data = torch.Generator().manual_seed(SEED)
    took, losses = [], []
    for step in range(ITERS):
        start = time.perf_counter()
        board.tick(step)
        for _ in range(MICRO):
            x = torch.randn(ROWS, DIM, generator=data)
            stage.forward_micro(x, labels=(x[:, 0] > 0).long())
        losses.append(sum(stage.backward_micro() for _ in range(MICRO)))
        nn.utils.clip_grad_norm_(stage.body.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - start)
        if stage.is_last and step % 50 == 49:
            print(f"step {step + 1} loss {sum(losses[-50:]) / 50:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        times = torch.tensor(took) * 1e3
        first = min(5, ONSET // 2)
        result = {
            "job": "pipe_throttle",
            "mean_ms_before": times[first:ONSET].mean().item(),
            "mean_ms_after": times[ONSET:].mean().item(),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
