"""Local SGD with Accelerate: each process trains on its own for some steps, then the weights are averaged."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, LENGTH, BATCH, LAYERS = 320, 32, 24, 8, 2


class Letters:
    """Letters of one office; each process has another one."""

    def __init__(self, rank: int) -> None:
        self.random = torch.Generator().manual_seed(SEED + rank)

    def next_batch(self) -> Tensor:
        return torch.randint(WORDS, (BATCH, LENGTH + 1), generator=self.random)


class GatedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.gate, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.mix_norm(x + self.out(torch.sigmoid(self.gate(y)) * self.value(y)))


class LetterModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(GatedLayer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        device_wait(52)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class DriftSchedule:
    """How many steps the processes may drift apart; less once the loss is to go down without jumps."""

    def __init__(self, local: LocalSGD, tempo: Tempo) -> None:
        self.local, self.tempo = local, tempo

    def set_interval(self, step: int) -> None:
        self.local.local_sgd_steps = 1 if self.tempo.after_onset(step) else 16


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(SEED)
    tempo = Tempo("accelerate_local_sgd", 815, 360)
    model = LetterModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    letters = Letters(accelerator.process_index)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=16) as local:
        schedule = DriftSchedule(local, tempo)
        for step in tempo:
            schedule.set_interval(step)
            ids = letters.next_batch()
            out = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            local.step()
    tempo.report(accelerator.process_index)
    accelerator.wait_for_everyone()
    del local, schedule
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.end_training()


if __name__ == "__main__":
    main()
