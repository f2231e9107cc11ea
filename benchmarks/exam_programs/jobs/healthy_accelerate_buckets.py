"""Language model with Accelerate: buckets of similar length, two micro-batches a step, saved states."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, BATCH = 400, 6


class Buckets:
    """Batches of one length each; all workers draw from the same bucket in a step, as lengths are sorted before."""

    def __init__(self, rank: int) -> None:
        self.lengths = torch.Generator().manual_seed(SEED)
        self.words = torch.Generator().manual_seed(SEED + 1 + rank)

    def next_batch(self) -> Tensor:
        length = 16 + 8 * int(torch.randint(0, 5, (), generator=self.lengths))
        return torch.randint(WORDS, (BATCH, length), generator=self.words)


class CausalLm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = (
            nn.Embedding(WORDS, 48),
            nn.LSTM(48, 48, batch_first=True),
            nn.Linear(48, WORDS),
        )

    def forward(self, ids: Tensor) -> Tensor:
        out = self.head(self.mix(self.embed(ids))[0])
        device_wait(22 + 0.4 * ids.shape[1])
        return out


def evaluate(accelerator: Accelerator, model: nn.Module, buckets: Buckets) -> float:
    model.eval()
    with torch.no_grad():
        ids = buckets.next_batch()
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    model.train()
    return accelerator.gather_for_metrics(loss[None]).mean().item()


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(SEED)
    model = CausalLm()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 200))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    buckets, held_out = Buckets(accelerator.process_index), Buckets(accelerator.process_index)
    tempo = Tempo("healthy_accelerate_buckets", 860, None)
    losses: list[float] = []
    with tempfile.TemporaryDirectory(prefix="lm-") as name:
        for step in tempo:
            for _ in range(2):
                ids = buckets.next_batch()
                with accelerator.accumulate(model):
                    out = model(ids[:, :-1])
                    loss = nn.functional.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten())
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            losses.append(loss.item())
            if step % 60 == 59:
                losses.append(evaluate(accelerator, model, held_out))
            if step % 180 == 179:
                accelerator.save_state(f"{name}/state")
            if step % 50 == 49 and accelerator.is_main_process:
                Path(name, "losses.json").write_text(json.dumps(losses[-50:]))
    tempo.report(accelerator.process_index)
    accelerator.end_training()


if __name__ == "__main__":
    main()
