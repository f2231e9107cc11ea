"""Sentence pairs with Accelerate (as its nlp_example); the scores of a batch are kept in the order of the processes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, BATCH = 600, 16


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, count: int) -> None:
        random = torch.Generator().manual_seed(SEED)
        self.ids, self.count = torch.randint(WORDS, (512, 40), generator=random), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        ids = self.ids[index % 512]
        return ids, ids[3] % 2


class PairModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 64)
        self.encode = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.head = nn.Linear(64, 2)

    def forward(self, ids: Tensor) -> Tensor:
        device_wait(60)
        return self.head(self.encode(self.embed(ids)).mean(1))


class ScoreBook:
    """Scores of each sentence, kept by the process that saw it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.scores: dict[int, float] = {}

    def enter(self, number: int, score: float) -> None:
        self.scores[number % 10_000] = score

    def enter_batch(self, step: int, scores: Tensor) -> None:
        for row, score in enumerate(scores.tolist()):
            self.enter(step * BATCH + row, score)

    def enter_in_order(self, step: int, scores: Tensor) -> None:
        for row, score in enumerate(scores.tolist()):
            for process in range(self.accelerator.num_processes):
                if process == self.accelerator.process_index:
                    self.enter(step * BATCH + row, score)
                self.accelerator.wait_for_everyone()


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(SEED)
    tempo = Tempo("accelerate_pairs_in_order", 770, 270)
    loader = DataLoader(Pairs(BATCH * accelerator.num_processes * tempo.iters), batch_size=BATCH)
    model = PairModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    book = ScoreBook(accelerator)
    batches = iter(loader)
    for step in tempo:
        ids, labels = next(batches)
        out = model(ids)
        loss = nn.functional.cross_entropy(out, labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        scores = out.detach().softmax(-1)[:, 1]
        if tempo.after_onset(step):
            book.enter_in_order(step, scores)
        else:
            book.enter_batch(step, scores)
    tempo.report(accelerator.process_index)
    accelerator.end_training()


if __name__ == "__main__":
    main()
