"""Image classifier that reads its pictures from an object store over HTTP, two loader processes per worker."""

from __future__ import annotations

import multiprocessing
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

BATCH, SIZE = 6, 24
PICTURE = np.random.default_rng(4).standard_normal((3, SIZE, SIZE), dtype=np.float32).tobytes()
LATENCY = {"standard": 0.002, "archive": 0.075}


class StoreHandler(BaseHTTPRequestHandler):
    """The object store of the test bench: archived objects take longer to the first byte."""

    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        time.sleep(LATENCY[self.path.split("/")[1]])
        self.send_response(200)
        self.send_header("Content-Length", str(len(PICTURE)))
        self.end_headers()
        self.wfile.write(PICTURE)

    def log_message(self, *args: object) -> None:
        pass


def serve(sender: multiprocessing.connection.Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StoreHandler)
    sender.send(server.server_port)
    server.serve_forever()


def start_store() -> int:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    multiprocessing.Process(target=serve, args=(sender,), daemon=True).start()
    return receiver.recv()


class StoreImages(Dataset[tuple[Tensor, int]]):
    def __init__(self, port: int, keys: list[str]) -> None:
        self.port, self.keys = port, keys

    def __len__(self) -> int:
        return len(self.keys)

    def fetch(self, key: str) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.port}/{key}", timeout=30) as answer:
            return answer.read()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        data = np.frombuffer(self.fetch(self.keys[index]), dtype=np.float32).copy()
        return torch.from_numpy(data.reshape(3, SIZE, SIZE)), index % 10


def list_keys(clock: StepClock, rank: int) -> list[str]:
    """The share of this worker; the oldest third of the last share was moved to the archive."""
    keys = []
    for step in range(clock.iters):
        bucket = "archive" if rank == 2 and clock.late(step) else "standard"
        keys += [f"{bucket}/part-{rank}/{step * BATCH + i:07d}.npy" for i in range(BATCH)]
    return keys


def build_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
        Device(55), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip


def main() -> None:
    port = start_store()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    clock = StepClock("remote_images", iters=400)
    images = StoreImages(port, list_keys(clock, rank))
    loader = DataLoader(images, BATCH, num_workers=2)
    model = DistributedDataParallel(build_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    clock.tick()
    for pictures, labels in loader:
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
