"""Speech recognition with CTC from a loader process, FSDP2, lengths that differ, two micro-batches a step. Healthy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

Batch = tuple[Tensor, Tensor, Tensor]


class Utterances(IterableDataset[Batch]):
    def __init__(self, seed: int, count: int) -> None:
        self.seed, self.count = seed, count

    def __iter__(self) -> Iterator[Batch]:
        random = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count):
            frames = int(torch.randint(40, 72, (1,), generator=random))
            sound = torch.randn(6, 24, frames, generator=random)
            text = torch.randint(1, 30, (6, 8), generator=random)
            yield sound, text, torch.full((6,), frames // 2)


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(24, 48, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(nn.Conv1d(48, 48, 5, padding=2) for _ in range(3))
        self.head = nn.Linear(48, 30)

    def forward(self, sound: Tensor) -> Tensor:
        x = torch.relu(self.front(sound))
        for block in self.blocks:
            x = x + torch.relu(block(x))
        kernel(12 + 0.25 * sound.shape[-1])
        return self.head(x.transpose(1, 2)).log_softmax(-1)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Recogniser()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    laps = Laps("healthy_speech_stream", 900, None)
    loader = iter(DataLoader(Utterances(SEED + rank, 2 * laps.iters), batch_size=None, num_workers=1))
    ctc = nn.CTCLoss()
    for step in laps:
        for _ in range(2):
            sound, text, frames = next(loader)
            out = model(sound).transpose(0, 1)
            (ctc(out, text, frames.clamp(max=out.shape[0]), torch.full((6,), 8)) / 2).backward()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 100)
        optimizer.step()
        optimizer.zero_grad()
    laps.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
