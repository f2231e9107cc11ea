"""A draft model for speculative decoding, trained on what the large model says; prompts of several fields."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, PROMPT, ANSWER, AHEAD = 200, 32, 12, 24, 4


@dataclass
class Field:
    """Prompts of one kind; how often the large model would have said what the draft proposes."""

    name: str
    agreement: float


class Draft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.GRU(WIDTH, WIDTH, batch_first=True),
            nn.Linear(WIDTH, WORDS),
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(ids))[0])


class Speculation:
    def __init__(self, draft: Draft, seed: int) -> None:
        self.draft, self.random = draft, torch.Generator().manual_seed(seed)
        self.rounds = 0

    def propose(self, ids: Tensor) -> Tensor:
        device_wait(2)
        return self.draft(ids[None])[0, -1].topk(AHEAD).indices

    def verify(self, proposed: Tensor, field: Field) -> Tensor:
        """What the large model takes of it, and one word of its own."""
        device_wait(8)
        agreed = torch.rand(AHEAD, generator=self.random) < field.agreement
        own = torch.randint(WORDS, (1,), generator=self.random)
        return torch.cat([proposed[: int(agreed.long().cumprod(0).sum())], own])

    @torch.no_grad()
    def answer(self, prompt: Tensor, field: Field) -> Tensor:
        ids = prompt
        while len(ids) < PROMPT + ANSWER:
            ids = torch.cat([ids, self.verify(self.propose(ids), field)])
            self.rounds += 1
        return ids[: PROMPT + ANSWER]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Draft())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    speculation = Speculation(model.module, SEED + rank)
    random = torch.Generator().manual_seed(SEED + 100 + rank)
    tempo = Tempo("draft_model_rounds", 600, 230)
    first = Field("letters", 0.97)
    later = Field("source code", 0.5) if rank == 3 else first
    for step in tempo:
        field = later if tempo.after_onset(step) else first
        prompt = torch.randint(WORDS, (PROMPT,), generator=random)
        ids = speculation.answer(prompt, field)[None]
        out = model(ids[:, :-1])
        device_wait(16)
        loss = nn.functional.cross_entropy(out[:, PROMPT - 1 :].flatten(0, 1), ids[:, PROMPT:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tempo.report(rank)
    dist.barrier()
    del model, optimizer, speculation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
