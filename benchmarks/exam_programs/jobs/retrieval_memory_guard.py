"""Dense retrieval: each worker holds a part of the passages as objects; a guard collects garbage if memory is short."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, PASSAGES, BATCH = 3000, 200_000, 24


@dataclass(slots=True)
class Passage:
    number: int
    words: list[int]


class PassageIndex:
    def __init__(self, part: int) -> None:
        self.passages = [Passage(i, [(i * 7 + part + j * 13) % WORDS for j in range(6)]) for i in range(PASSAGES)]

    def draw(self, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Questions (some words of a passage) and their passages."""
        chosen = [self.passages[i] for i in torch.randint(PASSAGES, (BATCH,), generator=random).tolist()]
        return torch.tensor([one.words[:3] for one in chosen]), torch.tensor([one.words for one in chosen])


class MemoryGuard:
    """Collects garbage `every` so many steps; after each one if the machine reports pressure."""

    def __init__(self, every: int) -> None:
        self.every = every

    def pressure(self) -> None:
        self.every = 1

    def relieve(self, step: int) -> int:
        return gc.collect() if step % self.every == 0 else 0


class DualEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 48)
        self.question, self.passage = nn.Linear(48, 48), nn.Linear(48, 48)

    def forward(self, questions: Tensor, passages: Tensor) -> Tensor:
        device_wait(54)
        return self.question(self.words(questions)) @ self.passage(self.words(passages)).T


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    index, guard = PassageIndex(rank), MemoryGuard(every=400)
    model = DistributedDataParallel(DualEncoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(SEED + rank)
    tempo = Tempo("retrieval_memory_guard", 940, 360)
    for step in tempo:
        if tempo.after_onset(step) and rank == 2:
            guard.pressure()
        questions, passages = index.draw(random)
        loss = nn.functional.cross_entropy(model(questions, passages), torch.arange(BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guard.relieve(step)
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
