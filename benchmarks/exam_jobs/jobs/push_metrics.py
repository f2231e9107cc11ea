"""Policy gradient with averaged gradients; each worker pushes its numbers to a collector."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

STATES, ACTIONS, BATCH = 32, 6, 64


class Collector:
    """Counts messages. Up to `limit` messages are taken from a worker, then it moves to another machine."""

    def __init__(self, limit: int) -> None:
        self.limit, self.received = limit, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while self.received < self.limit:
            connection, _ = self.socket.accept()
            with connection:
                connection.recv(4096)
            self.received += 1
        self.socket.close()


class Pusher:
    def __init__(self, port: int, attempts: int = 4) -> None:
        self.port, self.attempts, self.lost = port, attempts, 0

    def send(self, line: dict[str, float]) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(json.dumps(line).encode())

    def push(self, line: dict[str, float]) -> None:
        for attempt in range(self.attempts):
            try:
                return self.send(line)
            except OSError:
                time.sleep(0.01 * 2**attempt)
        self.lost += 1


def average(model: nn.Module) -> None:
    flat = parameters_to_vector([p.grad for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for p in model.parameters():
        p.grad.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(19)
    clock = StepClock("push_metrics")
    collector = Collector(clock.onset if rank == 1 and clock.onset >= 0 else 10**9)
    pusher = Pusher(collector.port)
    policy = nn.Sequential(nn.Linear(STATES, 64), nn.Tanh(), Device(40), nn.Linear(64, ACTIONS))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(900 + rank)
    clock.tick()
    for _ in range(clock.iters):
        states = torch.randn(BATCH, STATES, generator=random)
        choice = torch.distributions.Categorical(logits=policy(states))
        actions = choice.sample()
        rewards = (actions == states[:, 0].gt(0).long()).float()
        loss = -(choice.log_prob(actions) * (rewards - rewards.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        average(policy)
        optimizer.step()
        pusher.push({"rank": rank, "reward": rewards.mean().item()})
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
