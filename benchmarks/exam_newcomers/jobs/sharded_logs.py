"""Language model under FSDP2; each rank sends its log records to a collector over a socket."""

import json
import logging
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ITERS = int(os.environ.get("ITERS", "470"))
ONSET = int(os.environ.get("ONSET", "220"))
SEED = int(os.environ.get("SEED", "0"))
COLLECTOR = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
with peer, peer.makefile("rb") as lines:
    for line in lines:
        time.sleep(0.020)
        peer.sendall(b"k")
"""
log = logging.getLogger("trainer")


class CollectorHandler(logging.Handler):
    """One line of JSON for each record; the collector confirms each, so none is ever lost."""

    def __init__(self):
        super().__init__()
        self.process = subprocess.Popen([sys.executable, "-S", "-c", COLLECTOR], stdout=subprocess.PIPE)
        self.peer = socket.create_connection(("127.0.0.1", int(self.process.stdout.readline())))

    def emit(self, record):
        line = json.dumps({"at": record.created, "level": record.levelname, "text": record.getMessage()})
        self.peer.sendall(line.encode() + b"\n")
        self.peer.recv(1)

    def close(self):
        self.peer.close()
        self.process.wait(10)
        super().close()


class Layer(nn.Module):
    def __init__(self, width, index):
        super().__init__()
        self.index = index
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        time.sleep(0.018)
        y = x + self.mix(self.norm(x))
        log.debug("layer %d: in %s out %s", self.index, tuple(x.shape), tuple(y.shape))
        return y


class Model(nn.Module):
    def __init__(self, width=32, depth=6, words=200):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, i) for i in range(depth))
        self.out = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    handler = CollectorHandler()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    mesh = init_device_mesh("cpu", (world,))
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED + rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        if step == ONSET and rank == 1:
            log.setLevel(logging.DEBUG)
        tokens = torch.randint(200, (4, 17), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            log.info("step %d loss %.3f", step, loss.item())
        took.append(time.perf_counter() - began)
    dist.barrier()
    handler.close()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "sharded_logs", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
