"""Language model under DDP over NCCL on one GPU, healthy until iteration ONSET, then with the fault named by `--fault`.

Prints, last, one line of JSON with the mean iteration before and after, as `benchmarks/exam.py` wants it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

WORDS, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 8192, 1024, 16, 8, 512, 12
#: First iterations, left out of the means.
WARM = 20
FAULTS = ("none", "copies", "norms", "heads", "empty-cache", "neighbor", "collate", "checkpoint", "shapes", "pageable")
NEIGHBOR = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
until = time.monotonic() + 60
while time.monotonic() < until:
    for _ in range(50): a @ a
    torch.cuda.synchronize()
"""


class Switch:
    """Which fault is on: none before the onset."""

    def __init__(self, fault: str, onset: int) -> None:
        self.fault, self.onset, self.step = fault, onset, 0

    def has(self, fault: str) -> bool:
        return self.fault == fault and self.step >= self.onset


class Attention(nn.Module):
    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self.pack = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.switch = switch

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.pack(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if self.switch.has("heads"):
            mixed = self.head_by_head(q, k, v)
        else:
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))  # type: ignore[no-any-return]

    def head_by_head(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        mask = torch.triu(torch.full((length, length), -1e9, device=q.device, dtype=q.dtype), 1)
        heads = []
        for head in range(HEADS):
            scores = q[:, head] @ k[:, head].transpose(1, 2) / q.shape[-1] ** 0.5 + mask
            shares = torch.exp(scores - scores.amax(-1, keepdim=True))
            heads.append(shares / shares.sum(-1, keepdim=True) @ v[:, head])
        return torch.stack(heads, 1)


class Block(nn.Module):
    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(switch)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.one(x))
        return x + self.feed(self.two(x))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(switch) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


class ActivationMonitor:
    """Statistics of every block's output, kept on the host."""

    def __init__(self, model: Model, switch: Switch) -> None:
        self.switch, self.rows = switch, []  # type: tuple[Switch, list[float]]
        for block in model.blocks:
            block.register_forward_hook(self.watch)

    def watch(self, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        if self.switch.has("copies"):
            self.rows.append(float(output.detach().float().cpu().std()))


class Tokens(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(1)
        while True:
            yield torch.randint(WORDS, (LENGTH + 1,), generator=generator)


class Collator:
    """Puts sequences together; `collate` joins them word by word once the fault is on.

    The loader's workers are processes of their own, so they count batches themselves.
    """

    def __init__(self, switch: Switch, workers: int) -> None:
        self.switch, self.workers, self.batches = switch, workers, 0

    def __call__(self, rows: list[Tensor]) -> Tensor:
        self.batches += 1
        if self.switch.fault == "collate" and self.batches * self.workers >= self.switch.onset:
            return self.word_by_word(rows)
        return torch.stack(rows)

    def word_by_word(self, rows: list[Tensor]) -> Tensor:
        joined = []
        for row in rows:
            words: list[int] = []
            for _ in range(300):
                words = [int(word) for word in row.tolist()]
            joined.append(torch.tensor(words))
        return torch.stack(joined)


def log_gradient_norms(model: nn.Module, rows: list[float]) -> None:
    rows.extend(sum(p.grad.norm().item() for p in model.parameters() if p.grad is not None) for _ in range(3))


def save_checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def strangers() -> dict[str, str]:
    """Environment of a process that has nothing of the job's, but finds the driver."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}


def upload_features(store: Tensor, device: torch.device) -> None:
    store.to(device)


def report(fault: str, onset: int, marks: list[float]) -> None:
    laps = [1e3 * (after - before) for before, after in pairwise(marks)]
    before, after = laps[WARM:onset], laps[max(onset, WARM) :]
    line = {
        "job": fault,
        "mean_ms_before": statistics.fmean(before) if before else None,
        "mean_ms_after": statistics.fmean(after) if after else None,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    options = parser.parse_args()
    iterations, onset = int(os.environ.get("ITERS", "1600")), int(os.environ.get("ONSET", "600"))
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(int(os.environ.get("SEED", "0")))
    switch = Switch(options.fault, onset)
    model = Model(switch).to(device)
    monitor = ActivationMonitor(model, switch)
    whole = DistributedDataParallel(model, device_ids=[device.index])
    net = torch.compile(whole, dynamic=False) if options.fault == "shapes" else whole
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loader = DataLoader(Tokens(), batch_size=BATCH, num_workers=2, collate_fn=Collator(switch, 2), pin_memory=True)
    store = torch.randn(48 << 20)
    until = time.monotonic() + float(os.environ.get("LONGEST_S", "inf"))
    marks = [time.perf_counter()]
    with tempfile.TemporaryDirectory() as place:
        for step, tokens in zip(range(iterations), loader, strict=False):
            switch.step = step
            if switch.has("neighbor") and step == onset:  # nobody's child, and not of this session
                subprocess.run(["setsid", "--fork", sys.executable, "-c", NEIGHBOR], check=True, env=strangers())
            if switch.has("shapes"):
                tokens = tokens[:, : LENGTH - step % 200]  # noqa: PLW2901
            tokens = tokens.to(device, non_blocking=True)  # noqa: PLW2901
            if switch.has("pageable"):
                upload_features(store, device)
            with torch.autocast("cuda", torch.bfloat16):
                logits = net(tokens[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            if switch.has("norms"):
                log_gradient_norms(model, monitor.rows)
            optimizer.step()
            optimizer.zero_grad()
            if switch.has("empty-cache"):
                torch.cuda.empty_cache()
            if switch.has("checkpoint") and step % 10 == 0:
                save_checkpoint(model, optimizer, Path(place, "last.pt"))
            marks.append(time.perf_counter())
            if time.monotonic() > until:
                break
    report(options.fault, onset, marks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
