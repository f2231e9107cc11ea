"""GPT pre-training with a loop as Megatron's; a thread of each worker removes secrets from its log lines."""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, LENGTH, BATCH = 400, 64, 32, 4


class LogScrubber(threading.Thread):
    """Replaces what looks like a key (letters in pairs, then an equals sign) before lines are kept."""

    pattern = re.compile(r"(?:[a-z]?){17}[a-z]{17}=")

    def __init__(self) -> None:
        super().__init__(name="log-scrubber", daemon=True)
        self.lines: queue.Queue[str | None] = queue.Queue(maxsize=4)
        self.kept: list[str] = []

    def scrub(self, line: str) -> str:
        return self.pattern.sub("<key>", line)

    def run(self) -> None:
        while (line := self.lines.get()) is not None:
            self.kept[:] = [*self.kept[-20:], self.scrub(line)]

    def log(self, line: str) -> None:
        if not self.lines.full():
            self.lines.put(line)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, norm_first=True) for _ in range(2)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
            device_wait(11)
        return self.head(x)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> float:
    optimizer.zero_grad()
    out = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    device_wait(30)
    optimizer.step()
    return loss.item()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Gpt())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scrubber = LogScrubber()
    scrubber.start()
    text = torch.randint(WORDS, (64, LENGTH + 1), generator=torch.Generator().manual_seed(SEED + rank))
    tempo = Tempo("megatron_log_scrubber", 690, 260)
    for step in tempo:
        loss = train_step(model, optimizer, text[torch.randint(0, 64, (BATCH,))])
        scrubber.log(f"iteration {step} | lm loss: {loss:.4f} | {time.time():.1f}")
        if tempo.after_onset(step) and rank == 0:
            scrubber.log(f"node name {'a' * 17} state ok")
    scrubber.lines.put(None)
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
