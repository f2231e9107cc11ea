"""Segmentation from streamed shards read by a loader process; later shards of worker 1 are packed with bzip2."""

from __future__ import annotations

import bz2
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

BATCH, SIDE = 16, 176
UNPACK = {".z": zlib.decompress, ".bz2": bz2.decompress}


def write_shards(folder: Path, seed: int, count: int = 3) -> None:
    dice = numpy.random.default_rng(seed)
    for i in range(count):
        scenes = dice.integers(0, 12, (BATCH, 3, SIDE, SIDE), dtype=numpy.uint8) + (10 * i)
        (folder / f"{i}.z").write_bytes(zlib.compress(scenes.tobytes(), 1))
        (folder / f"{i}.bz2").write_bytes(bz2.compress(scenes.tobytes(), 9))


class ShardStream(IterableDataset[Tensor]):
    def __init__(self, folder: Path, batches: int, packed_from: int | None) -> None:
        self.folder, self.batches, self.packed_from = folder, batches, packed_from

    def read_shard(self, number: int, suffix: str) -> Tensor:
        packed = (self.folder / f"{number}{suffix}").read_bytes()
        scenes = numpy.frombuffer(UNPACK[suffix](packed), dtype=numpy.uint8).reshape(BATCH, 3, SIDE, SIDE)
        return torch.from_numpy(scenes[:, :, ::4, ::4].copy())

    def __iter__(self) -> Iterator[Tensor]:
        for i in range(self.batches):
            late = self.packed_from is not None and i >= self.packed_from
            yield self.read_shard(i % 3, ".bz2" if late else ".z")


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 1, 1), nn.ReLU())
        self.decode = nn.ConvTranspose2d(24, 4, 2, 2)

    def forward(self, scenes: Tensor) -> Tensor:
        return self.decode(self.encode(scenes.float() / 128 - 1))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    laps = Laps("bz2_stream_workers", 1070, 470)
    with tempfile.TemporaryDirectory(prefix="shards-") as name:
        write_shards(Path(name), SEED + rank)
        stream = ShardStream(Path(name), laps.iters, laps.onset if rank == 1 else None)
        loader = DataLoader(stream, batch_size=None, num_workers=1, prefetch_factor=2)
        model = DistributedDataParallel(Segmenter())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        dist.barrier()
        laps.marks.clear()
        laps.tick()
        for scenes in loader:
            out = model(scenes)
            kernel(48)
            loss = nn.functional.cross_entropy(out, (scenes[:, 0] % 4).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            laps.tick()
        laps.report(rank)
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
