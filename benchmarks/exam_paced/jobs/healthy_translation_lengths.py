"""Translation with sentences of any length, drawn for each batch; a short evaluation every 80 steps. Healthy."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

WORDS, WIDTH = 600, 64


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.mix = nn.Linear(2 * WIDTH, WIDTH)
        self.out = nn.Linear(2 * WIDTH, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.mix(self.encoder(self.embedding(source))[0])
        states, _ = self.decoder(self.embedding(target))
        context = (states @ memory.transpose(1, 2)).softmax(-1) @ memory
        kernel(20 + 0.8 * source.shape[1])
        return self.out(torch.cat([states, context], -1))


class Sentences:
    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)

    def batch(self) -> tuple[Tensor, Tensor]:
        length = int(torch.randint(14, 36, (1,), generator=self.random))
        source = torch.randint(0, WORDS, (10, length), generator=self.random)
        return source, source.flip(1)


@torch.no_grad()
def evaluate(model: nn.Module, rounds: int = 3) -> float:
    sentences, total = Sentences(4), 0.0
    for _ in range(rounds):
        source, target = sentences.batch()
        total += float(nn.functional.cross_entropy(model(source, target).flatten(0, 1), target.flatten()))
    return total / rounds


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Translator())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sentences = Sentences(SEED + 50 * rank)
    laps = Laps("healthy_translation_lengths", 1300, None)
    for step in laps:
        source, target = sentences.batch()
        loss = nn.functional.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 80 == 79:
            evaluate(model.module)
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
