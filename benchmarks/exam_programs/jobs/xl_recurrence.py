"""Language model with recurrence over segments (Transformer-XL): attends to the states of earlier segments as well."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, HEADS, SEGMENT, BATCH, DOCUMENT = 500, 64, 4, 24, 4, 250


class SegmentAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.both, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        context = torch.cat([memory, x], 1)
        q = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = self.both(context).unflatten(-1, (2 * HEADS, -1)).transpose(1, 2).chunk(2, 1)
        score = (q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).softmax(-1)
        return self.norm(x + self.out((score @ v).transpose(1, 2).flatten(2)))


class RecurrentLm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(SegmentAttention() for _ in range(2))

    def forward(self, ids: Tensor, memories: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        x, states = self.embed(ids), []
        for layer, memory in zip(self.layers, memories, strict=True):
            states.append(x.detach())
            x = layer(x, memory)
        device_wait(55)
        return self.head(x), states


class Memories:
    """States of the segments before, of each layer; those of one document only, at most `reach` of them."""

    def __init__(self, layers: int, reach: int) -> None:
        self.reach = reach
        self.kept = [torch.zeros(BATCH, 0, WIDTH) for _ in range(layers)]

    def extend(self, states: list[Tensor]) -> None:
        self.kept = [torch.cat([old, new], 1)[:, -self.reach :] for old, new in zip(self.kept, states, strict=True)]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(RecurrentLm())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    text = torch.randint(WORDS, (BATCH, SEGMENT * 64 + 1), generator=torch.Generator().manual_seed(SEED + rank))
    memories = Memories(2, 2 * SEGMENT)
    tempo = Tempo("xl_recurrence", 820, 340)
    for step in tempo:
        if tempo.after_onset(step):
            memories.reach = DOCUMENT * SEGMENT
        at = step % 64 * SEGMENT
        out, states = model(text[:, at : at + SEGMENT], memories.kept)
        memories.extend(states)
        loss = nn.functional.cross_entropy(out.flatten(0, 1), text[:, at + 1 : at + SEGMENT + 1].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
