"""Word prediction with Accelerate; a table of the likeliest words of each position is kept for the error analysis."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LENGTH, BATCH = 300, 48, 24


class Lines(Dataset[Tensor]):
    def __init__(self, count: int) -> None:
        random = torch.Generator().manual_seed(SEED)
        self.ids, self.count = torch.randint(WORDS, (512, LENGTH + 1), generator=random), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return self.ids[index % 512]


class WordModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 48)
        self.mix = nn.Conv1d(48, 48, 3)
        self.head = nn.Linear(48, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        x = torch.relu(self.mix(nn.functional.pad(x, (2, 0)))).transpose(1, 2)
        device_wait(48)
        return self.head(x)


class PredictionTable:
    """What the model holds likely, of all processes; `every`: so many steps apart."""

    def __init__(self, every: int, candidates: int = 24) -> None:
        self.every, self.candidates = every, candidates
        self.rows: list[dict[str, Any]] = []

    def rows_of(self, step: int, scores: Tensor) -> list[dict[str, Any]]:
        values, words = scores.softmax(-1).topk(self.candidates)
        rows = []
        for line, (line_values, line_words) in enumerate(zip(values.tolist(), words.tolist(), strict=True)):
            for position, (ps, ws) in enumerate(zip(line_values, line_words, strict=True)):
                likely = [{"word": word, "p": p} for word, p in zip(ws, ps, strict=True)]
                rows.append({"step": step, "line": line, "position": position, "likely": likely})
        return rows

    def maybe_collect(self, step: int, scores: Tensor) -> None:
        if step % self.every == 0:
            self.rows = gather_object(self.rows_of(step, scores))


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(SEED)
    tempo = Tempo("accelerate_prediction_table", 795, 295)
    loader = DataLoader(Lines(BATCH * accelerator.num_processes * tempo.iters), batch_size=BATCH)
    model = WordModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    table = PredictionTable(every=200)
    batches = iter(loader)
    for step in tempo:
        if tempo.after_onset(step):
            table.every = 1
        ids = next(batches)
        out = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        table.maybe_collect(step, out.detach())
    tempo.report(accelerator.process_index)
    accelerator.end_training()


if __name__ == "__main__":
    main()
