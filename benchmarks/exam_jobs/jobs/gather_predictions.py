"""Sentence classifier in an own loop with Accelerate; predictions are gathered for a table of examples."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

WORDS, LABELS, LENGTH, BATCH = 800, 40, 20, 16
clock = StepClock("gather_predictions", iters=270, onset=150)


class Sentences(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, count: int) -> None:
        self.words = torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.words[index], self.words[index].sum() % LABELS


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 64)
        self.mix = nn.Conv1d(64, 64, 3, padding=1)
        self.device = Device(45)
        self.head = nn.Linear(64, LABELS)

    def forward(self, words: Tensor) -> Tensor:
        x = torch.relu(self.mix(self.embed(words).transpose(1, 2)))
        return self.head(self.device(x.mean(dim=2)))


class ExampleTable:
    def __init__(self) -> None:
        self.examples: list[dict[str, object]] = []
        self.everywhere: list[dict[str, object]] = []

    def add(self, words: Tensor, labels: Tensor, logits: Tensor) -> None:
        shares = logits.softmax(dim=1).tolist()
        for text, label, share in zip(words.tolist(), labels.tolist(), shares, strict=True):
            self.examples.append({"words": text, "label": label, "shares": share, "wrong": max(share) != share[label]})

    def exchange(self) -> None:
        self.everywhere = gather_object(self.examples)

    def accuracy(self) -> float:
        return 1 - sum(bool(e["wrong"]) for e in self.everywhere) / max(1, len(self.everywhere))


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(17)
    model = Bag()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Sentences(clock.iters * BATCH * accelerator.num_processes), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    table = ExampleTable()
    clock.tick()
    for step, (words, labels) in enumerate(loader):
        logits = model(words)
        loss = nn.functional.cross_entropy(logits, labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if clock.late(step):
            table.add(words, labels, logits.detach())
            table.exchange()
        clock.tick()
    accelerator.print(f"accuracy {table.accuracy():.3f}")
    clock.report(accelerator.process_index)
    accelerator.end_training()


if __name__ == "__main__":
    main()
