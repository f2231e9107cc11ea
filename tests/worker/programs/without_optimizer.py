"""Ranks of which some or all step no torch optimizer, for some seconds. Each prints the iterations it has done.

actors      rank 0 learns from what the others have seen, which it gathers; it broadcasts its parameters
server      rank 0 receives gradients from each other rank in turn, and sends parameters back
any         the same in the order in which gradients come
by hand     gradients are added to the parameters without an optimizer
generate    all ranks ask after each token whether everybody has finished; no backward pass
late        one rank, whose optimizer steps in another thread than the one that began with a barrier
batches     a loader, and no backward pass, in one process
"""

import argparse
import contextlib
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = {"actors": 3, "server": 3, "any": 3, "by hand": 2, "generate": 2, "late": 1}


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))


def vector(net: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach()


class Loop:
    """One rank's loop; `once` is one iteration."""

    def __init__(self, rank: int, pause_s: float, updates: int) -> None:
        self.rank, self.pause_s, self.updates, self.net = rank, pause_s, updates, model()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def actors(self) -> None:
        seen = [None] * RANKS["actors"]
        if self.rank:
            time.sleep(self.pause_s)
            dist.gather_object(bytes(100), None)
        else:
            dist.gather_object(b"", seen)
            for _ in range(self.updates):
                self.net(torch.ones(8, 64)).sum().backward()
                self.optimizer.step()
        dist.broadcast(vector(self.net), 0)

    def server(self) -> None:
        other = vector(self.net)
        if self.rank:
            time.sleep(self.pause_s)
            dist.send(other, 0)
            dist.recv(other, 0)
        else:
            for peer in range(1, RANKS["server"]):
                dist.recv(other, peer)
                dist.send(other, peer)

    def any(self) -> None:
        other = vector(self.net)
        if self.rank:
            self.server()
        else:
            for _ in range(1, RANKS["any"]):
                dist.send(other, dist.recv(other))

    def by_hand(self) -> None:
        self.net(torch.ones(8, 64)).sum().backward()
        for parameter in self.net.parameters():
            dist.all_reduce(parameter.grad)
            with torch.no_grad():
                parameter.add_(parameter.grad, alpha=-1e-3)
            parameter.grad = None
        time.sleep(self.pause_s)

    def generate(self) -> None:
        with torch.no_grad():
            self.net(torch.ones(1, 64))
        time.sleep(self.pause_s)
        dist.all_reduce(torch.ones(1))

    def late(self) -> None:
        self.net(torch.ones(8, 64)).sum().backward()
        self.optimizer.step()
        time.sleep(0.01)


def work(rank: int, kind: str, port: int, count: int, pause_s: float, updates: int, stop_at: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS[kind])
    dist.barrier()
    loop = Loop(rank, pause_s, updates)
    once = getattr(loop, kind.replace(" ", "_"))
    if kind == "late":
        thread = threading.Thread(target=lambda: [once() for _ in range(count)])
        thread.start()
        thread.join()
    for iteration in range(0 if kind == "late" else count):
        if iteration == stop_at and rank == 1:
            load_next_prompt()
        once()
    sys.stdout.write(f"{rank} {count}\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


def load_next_prompt() -> None:
    time.sleep(600)


def batches(count: int, pause_s: float) -> None:
    loader = torch.utils.data.DataLoader(torch.zeros(count, 4), batch_size=1)
    for _ in loader:
        time.sleep(pause_s)
    sys.stdout.write(f"0 {count}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--stop-at", type=int, default=-1)
    given = parser.parse_args()
    if given.kind == "batches":
        batches(given.count, given.pause)
        sys.exit()
    import socket

    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    facts = (given.kind, port, given.count, given.pause, given.updates, given.stop_at)
    mp.start_processes(work, facts, RANKS[given.kind], start_method="fork")
