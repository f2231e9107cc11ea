"""Click prediction: each worker keeps hot rows of a remote table and fetches them again when they are too old."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

TABLE = """
import os, socket, struct, threading, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
block = os.urandom(64 * 32 * 4)
def serve(channel):
    while len(order := channel.recv(8)) == 8:
        _, pages = struct.unpack("!II", order)
        for _ in range(pages):
            time.sleep(0.0045)
            channel.sendall(block)
def accept():
    while True:
        channel, _ = server.accept()
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(channel,), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.5)
"""
HOT, PAGE, WIDTH, DENSE, BATCH = 1024, 64, 32, 13, 64


class HotRows:
    """Rows of the remote table that are used most; each is fetched again after `keep` steps."""

    def __init__(self, port: int) -> None:
        self.channel = socket.create_connection(("127.0.0.1", port))
        self.rows = torch.zeros(HOT, WIDTH)
        self.keep, self.phase = 10**9, dist.get_rank()

    def fetch_page(self) -> Tensor:
        size, parts = PAGE * WIDTH * 4, []
        while size:
            part = self.channel.recv(min(size, 65536))
            if not part:
                raise ConnectionError("the table has gone")
            parts.append(part)
            size -= len(part)
        raw = numpy.frombuffer(b"".join(parts), dtype=numpy.uint8)[: PAGE * WIDTH].astype(numpy.float32)
        return torch.from_numpy(raw / 128 - 1).view(PAGE, WIDTH)

    def refresh(self) -> None:
        self.channel.sendall(struct.pack("!II", 0, HOT // PAGE))
        for page in range(HOT // PAGE):
            self.rows[page * PAGE : (page + 1) * PAGE] = self.fetch_page()

    def lookup(self, step: int, ids: Tensor) -> Tensor:
        if step % self.keep == self.phase:
            self.refresh()
        return self.rows[ids]


class ClickModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        self.top = nn.Sequential(nn.Linear(WIDTH * 3, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        x = self.bottom(dense)
        return self.top(torch.cat([x, rows.mean(1), x * rows.mean(1)], 1))[:, 0]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    table = subprocess.Popen([sys.executable, "-c", TABLE], stdout=subprocess.PIPE, text=True)
    assert table.stdout is not None
    rows = HotRows(int(table.stdout.readline()))
    model = ClickModel()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    random = torch.Generator().manual_seed(SEED + rank)
    tempo = Tempo("dlrm_row_refresh", 760, 330)
    for step in tempo:
        if tempo.after_onset(step):
            rows.keep = world
        dense = torch.randn(BATCH, DENSE, generator=random)
        found = rows.lookup(step, torch.randint(HOT, (BATCH, 8), generator=random))
        out = model(dense, found)
        device_wait(60)
        loss = nn.functional.binary_cross_entropy_with_logits(out, (dense[:, 0] > 0).float())
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        for parameter, part in zip(
            model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
        ):
            parameter.grad.copy_(part.view_as(parameter) / world)
        optimizer.step()
    table.terminate()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
