"""A loop as torchtitan's trainer has it: FSDP2, a generator of batches, gradient accumulation, clipping, a schedule.

a  from step 150 on: all ranks tokenize the next document again for each micro-batch
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from steps import Steps
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset

BATCH, LENGTH, WIDTH, ACCUMULATE = 4, 64, 128, 2
TEXT = "a document of many words that are split into pieces again and again " * 240
steps = Steps("titan_like")


def tokenize_document(text: str) -> list[int]:
    tokens: list[int] = []
    for word in text.split():
        tokens += [sum(map(ord, word[:size])) % 1000 for size in range(1, len(word) + 1)]
    return tokens


class Documents(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        tokens = tokenize_document(TEXT)
        while True:
            if steps.faulty():
                tokens = tokenize_document(TEXT)
            yield torch.tensor(tokens[: LENGTH + 1])


class Trainer:
    def __init__(self) -> None:
        layers = [nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True) for _ in range(3)]
        self.model = nn.Sequential(nn.Embedding(1000, WIDTH), *layers, nn.Linear(WIDTH, 1000))
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (*self.model[1:-1], self.model):
            fully_shard(layer, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 100))
        self.loader = DataLoader(Documents(), BATCH)

    def batch_generator(self) -> Iterator[Tensor]:
        yield from self.loader

    def train_step(self, batches: Iterator[Tensor]) -> None:
        self.optimizer.zero_grad()
        for _ in range(ACCUMULATE):
            tokens = next(batches)
            logits = self.model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / ACCUMULATE
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()

    def train(self) -> None:
        batches = self.batch_generator()
        while steps.done < steps.count:
            self.train_step(batches)
            steps.end()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    Trainer().train()
    steps.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
