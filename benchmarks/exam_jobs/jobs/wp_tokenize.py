"""Masked language model on documents; word pieces are made on the fly where no prepared shard exists."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

LENGTH, BATCH, WIDTH, WORDS = 64, 4, 96, 3000
SYLLABLES = "ka lo mi ren tu sha vel or in dra pos tek ul ba no fi gre sta whi qua".split()


def make_documents(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join("".join(rng.choices(SYLLABLES, k=rng.randint(2, 5))) for _ in range(WORDS)) for _ in range(count)
    ]


class WordPieces:
    """Greedy, longest match first."""

    def __init__(self) -> None:
        pieces = ["[PAD]", "[UNK]", "[MASK]", *SYLLABLES]
        pieces += [a + b for a in SYLLABLES for b in SYLLABLES[:10]]
        self.ids = {piece: i for i, piece in enumerate(pieces)}

    def __len__(self) -> int:
        return len(self.ids)

    def split_word(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start and word[start:end] not in self.ids:
                end -= 1
            if end == start:
                return [1]
            found.append(self.ids[word[start:end]])
            start = end
        return found

    def encode(self, text: str, length: int) -> list[int]:
        ids: list[int] = []
        for word in text.lower().split():
            ids.extend(self.split_word(word))
        ids = ids[:length]
        return ids + [0] * (length - len(ids))


class Encoder(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.place = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.device = Device(30)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.device(self.body(self.embed(ids) + self.place)))


def hide_some(ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    hidden = torch.rand(ids.shape, generator=generator) < 0.15
    return ids.masked_fill(hidden, 2), ids.masked_fill(~hidden, -100)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    clock = StepClock("wp_tokenize")
    pieces = WordPieces()
    documents = make_documents(48, seed=rank)
    prepared = [pieces.encode(text, LENGTH) for text in documents]
    model = DistributedDataParallel(Encoder(len(pieces)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(rank)
    clock.tick()
    for step in range(clock.iters):
        chosen = [(step * BATCH + i) % len(documents) for i in range(BATCH)]
        if clock.late(step):  # the prepared shard is used up
            rows = [pieces.encode(documents[i], LENGTH) for i in chosen]
        else:
            rows = [prepared[i] for i in chosen]
        inputs, targets = hide_some(torch.tensor(rows), generator)
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
