"""Classifier with many classes; precision and recall of each class are followed once the warm-up is over."""

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

FEATURES, CLASSES, BATCH = 64, 700, 128


class ClassReport:
    def __init__(self) -> None:
        self.hits = [0] * CLASSES
        self.guesses = [0] * CLASSES
        self.present = [0] * CLASSES

    def update(self, logits: Tensor, labels: Tensor) -> None:
        guesses = logits.argmax(dim=1)
        for number in range(CLASSES):
            guessed, true = guesses == number, labels == number
            self.hits[number] += (guessed & true).sum().item()
            self.guesses[number] += guessed.sum().item()
            self.present[number] += true.sum().item()

    def macro_f1(self) -> float:
        triples = zip(self.hits, self.guesses, self.present, strict=True)
        return sum(2 * h / max(1, g + p) for h, g, p in triples) / CLASSES


def batches(count: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    for _ in range(count):
        labels = torch.randint(CLASSES, (BATCH,), generator=generator)
        yield centres[labels] + 0.5 * torch.randn(BATCH, FEATURES, generator=generator), labels


def train(model: nn.Module, clock: StepClock, rank: int) -> ClassReport:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    report = ClassReport()
    clock.tick()
    for step, (inputs, labels) in enumerate(batches(clock.iters, 70 + rank)):
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clock.late(step):
            report.update(logits.detach(), labels)
        clock.tick()
    return report


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    clock = StepClock("class_report")
    net = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), Device(20), nn.Linear(128, CLASSES))
    report = train(DistributedDataParallel(net), clock, rank)
    if rank == 0:
        print(f"macro F1 {report.macro_f1():.3f}")
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
