"""Character model with gradient accumulation: gradients are exchanged after every fourth small batch."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

CHARACTERS, WIDTH, LENGTH, BATCH, EVERY = 90, 64, 32, 4, 4


class CharacterModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARACTERS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.device = Device(25)
        self.head = nn.Linear(WIDTH, CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.device(self.body(self.embed(ids), mask=self.mask, is_causal=True)))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(28)
    clock = StepClock("healthy_micro_batches")
    model = DistributedDataParallel(CharacterModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(240 + rank)
    clock.tick()
    for step in range(clock.iters):
        ids = torch.randint(CHARACTERS, (BATCH, LENGTH + 1), generator=random)
        last = (step + 1) % EVERY == 0
        with contextlib.nullcontext() if last else model.no_sync():
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / EVERY
            loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        clock.tick()
    clock.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
