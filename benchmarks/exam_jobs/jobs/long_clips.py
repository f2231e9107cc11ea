"""Speech model with a hand-written recurrent cell; the share of each worker lies in its own folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

BANDS, WIDTH, BATCH = 40, 64, 8


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(BANDS + WIDTH, 2 * WIDTH)
        self.candidate = nn.Linear(BANDS + WIDTH, WIDTH)

    def forward(self, frame: Tensor, state: Tensor) -> Tensor:
        reset, keep = torch.sigmoid(self.gates(torch.cat([frame, state], dim=1))).chunk(2, dim=1)
        new = torch.tanh(self.candidate(torch.cat([frame, reset * state], dim=1)))
        return keep * state + (1 - keep) * new


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()
        self.device = Device(30)
        self.head = nn.Linear(WIDTH, 12)

    def forward(self, clips: Tensor) -> Tensor:
        state = torch.zeros(len(clips), WIDTH)
        for frame in clips.unbind(dim=1):
            state = self.cell(frame, state)
        return self.head(self.device(state))


class ClipFolder:
    """Clips of one worker in the order of their recording."""

    def __init__(self, rank: int, clock: StepClock) -> None:
        self.rank, self.clock = rank, clock
        self.random = torch.Generator().manual_seed(700 + rank)

    def frames(self, step: int) -> int:
        interviews = self.rank == 2 and self.clock.late(step)  # the folder of worker 2 ends with interviews
        return 120 if interviews else 10

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        clips = torch.randn(BATCH, self.frames(step), BANDS, generator=self.random)
        return clips, torch.randint(12, (BATCH,), generator=self.random)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(18)
    clock = StepClock("long_clips")
    folder = ClipFolder(rank, clock)
    model = DistributedDataParallel(Listener())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    clock.tick()
    for step in range(clock.iters):
        clips, labels = folder.batch(step)
        loss = nn.functional.cross_entropy(model(clips), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
