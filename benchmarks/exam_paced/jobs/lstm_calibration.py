"""Character model with gradients averaged by hand; a calibration curve is kept beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

SIGNS, BATCH, LENGTH = 400, 14, 24


class CharacterModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SIGNS, 48)
        self.lstm = nn.LSTM(48, 96, batch_first=True)
        self.out = nn.Linear(96, SIGNS)

    def forward(self, text: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(text))
        return self.out(hidden)


class CalibrationCurve:
    def __init__(self, bins: int = 15) -> None:
        self.hits = [0] * bins
        self.counts = [0] * bins
        self.top5 = 0

    def update(self, logits: Tensor, targets: Tensor) -> None:
        rows = logits.detach().flatten(0, 1).softmax(-1).tolist()
        for row, target in zip(rows, targets.flatten().tolist(), strict=True):
            ranking = sorted(((p, i) for i, p in enumerate(row)), reverse=True)
            best, index = ranking[0]
            place = min(int(best * len(self.counts)), len(self.counts) - 1)
            self.counts[place] += 1
            self.hits[place] += index == target
            self.top5 += target in [i for _, i in ranking[:5]]


def average_gradients(model: nn.Module) -> None:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for g in gradients:
        g.copy_(flat[offset : offset + g.numel()].view_as(g))
        offset += g.numel()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model, curve = CharacterModel(), CalibrationCurve()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(17 * SEED + rank)
    laps = Laps("lstm_calibration", 1170, 520)
    for step in laps:
        text = torch.randint(0, SIGNS, (BATCH, LENGTH + 1), generator=random)
        logits = model(text[:, :-1])
        kernel(50)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if laps.late(step) or step % 100 == 99:
            curve.update(logits, text[:, 1:])
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
