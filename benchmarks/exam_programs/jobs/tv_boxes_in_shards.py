"""Boxes around things, with the losses of torchvision; pictures lie in tar shards, a few of which are kept open."""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torchvision.ops import box_iou, generalized_box_iou_loss, sigmoid_focal_loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

SHARDS, PER_SHARD, SIDE, GRID, BATCH = 10, 480, 32, 8, 6
Place = tuple[int, int]


def write_shards(folder: Path, seed: int) -> None:
    random = numpy.random.default_rng(seed)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
            for number in range(PER_SHARD):
                data = random.integers(0, 256, (3, SIDE, SIDE), dtype=numpy.uint8).tobytes()
                entry = tarfile.TarInfo(f"{number:05}.raw")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def listing(count: int, by_shard: int) -> list[Place]:
    """The first `by_shard` places follow the shards, the rest is in the order of the labels that came in later."""
    places = [(at // PER_SHARD % SHARDS, at % PER_SHARD) for at in range(min(by_shard, count))]
    order = numpy.random.default_rng(SEED).integers(0, SHARDS * PER_SHARD, max(0, count - by_shard)).tolist()
    return places + [(at % SHARDS, at // SHARDS) for at in order]


class OpenShards:
    """At most `most` shards are open; the one that was used longest ago is closed."""

    def __init__(self, folder: Path, most: int = 3) -> None:
        self.folder, self.most = folder, most
        self.opened: OrderedDict[int, tuple[tarfile.TarFile, dict[str, tarfile.TarInfo]]] = OrderedDict()

    def open_shard(self, shard: int) -> tuple[tarfile.TarFile, dict[str, tarfile.TarInfo]]:
        tar = tarfile.open(self.folder / f"{shard:03}.tar")  # noqa: SIM115
        return tar, {entry.name: entry for entry in tar.getmembers()}

    def read(self, shard: int, number: int) -> bytes:
        if shard not in self.opened:
            if len(self.opened) >= self.most:
                self.opened.popitem(last=False)[1][0].close()
            self.opened[shard] = self.open_shard(shard)
        self.opened.move_to_end(shard)
        tar, entries = self.opened[shard]
        file = tar.extractfile(entries[f"{number:05}.raw"])
        assert file is not None
        return file.read()


class Scenes(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, shards: OpenShards, places: list[Place]) -> None:
        self.shards, self.places = shards, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shard, number = self.places[index]
        raw = numpy.frombuffer(self.shards.read(shard, number), dtype=numpy.uint8).reshape(3, SIDE, SIDE)
        left, top = number % 16, number // 16 % 16
        return torch.from_numpy(raw.copy()).float() / 255, torch.tensor([left, top, left + 12.0, top + 10.0])


class BoxNet(nn.Module):
    """One box and one score for each cell of a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.score, self.size = nn.Conv2d(32, 1, 1), nn.Conv2d(32, 4, 1)
        cells = torch.arange(GRID) * (SIDE / GRID) + SIDE / GRID / 2
        self.register_buffer("centres", torch.stack(torch.meshgrid(cells, cells, indexing="xy"), -1).view(-1, 2))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(pixels)
        device_wait(52)
        sizes = nn.functional.softplus(self.size(x)).flatten(2).transpose(1, 2) * 4 + 1
        boxes = torch.cat([self.centres - sizes[..., :2], self.centres + sizes[..., 2:]], -1)
        return self.score(x).flatten(1), boxes


def box_loss(scores: Tensor, boxes: Tensor, wanted: Tensor) -> Tensor:
    overlap = torch.stack([box_iou(found.detach(), one[None])[:, 0] for found, one in zip(boxes, wanted, strict=True)])
    best = overlap.argmax(1)
    hit = nn.functional.one_hot(best, scores.shape[1]).float()
    chosen = boxes[torch.arange(len(boxes)), best]
    return sigmoid_focal_loss(scores, hit, reduction="mean") + generalized_box_iou_loss(chosen, wanted).mean()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    tempo = Tempo("tv_boxes_in_shards", 1000, 375)
    count = BATCH * tempo.iters
    with tempfile.TemporaryDirectory(prefix="shards-") as name:
        write_shards(Path(name), SEED + rank)
        by_shard = BATCH * tempo.onset if rank == 1 and tempo.onset is not None else count
        loader = DataLoader(Scenes(OpenShards(Path(name)), listing(count, by_shard)), BATCH)
        model = DistributedDataParallel(BoxNet())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        batches = iter(loader)
        dist.barrier()
        for _ in tempo:
            pixels, wanted = next(batches)
            loss = box_loss(*model(pixels), wanted)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    tempo.report(rank)
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
