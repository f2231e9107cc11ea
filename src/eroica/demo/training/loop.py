"""Trains a small language model on random tokens with several workers.

torchrun --nproc-per-node 4 train.py --iterations 500
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from eroica.demo import Injection, inject

from . import tokens
from .data import RandomTokens, make_loader
from .model import LanguageModel, ModelSize, next_token_loss


def options() -> argparse.ArgumentParser:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000, help="optimizer steps at most")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="workers share the GPUs there are")
    parser.add_argument("--batch", type=int, default=8, help="sequences of each worker and forward pass")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--log-every", type=int, default=50, help="iterations between lines")
    parser.add_argument("--seed", type=int, default=0)
    return parser


class Trainer:
    """The loop: batches in, optimizer steps out, now and then a line."""

    def __init__(self, options: argparse.Namespace, faults: Injection, device: torch.device) -> None:
        self.options, self.faults, self.device = options, faults, device
        self.lap = (0, time.monotonic())
        torch.manual_seed(options.seed)
        self.size = ModelSize(width=options.width, layers=options.layers, length=options.length)
        self.build()
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3)

    def build(self) -> None:
        """Make the model and what it reads."""
        self.module: Any = DistributedDataParallel(LanguageModel(self.size).to(self.device))
        needed = self.options.iterations * self.options.batch
        seed = self.options.seed * 4096 + dist.get_rank()
        dataset = RandomTokens(min(needed, 200_000), self.size.length, self.size.vocabulary, seed)
        self.batches = forever(make_loader(self.faults.dataset(dataset), self.options.batch))

    def train(self) -> None:
        """Run until the iterations are used up."""
        for iteration in range(self.options.iterations):
            self.faults.iteration(iteration, self.module)
            loss = self.train_step()
            if not self.after_step(iteration + 1, loss):
                break

    def train_step(self) -> float | None:
        """One optimizer step; the loss where it is known."""
        batch = next(self.batches).to(self.device)
        loss = next_token_loss(self.module(batch[:, :-1]), batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def after_step(self, iteration: int, loss: float | None) -> bool:
        """Print a line now and then; whether to go on."""
        if due(iteration, self.options.log_every) and loss is not None and self.speaks():
            before, then = self.lap
            self.lap = (iteration, time.monotonic())
            pace = (self.lap[1] - then) * 1000 / (iteration - before)
            print(f"iteration {iteration:5d}  loss {loss:.4f}  {pace:6.1f} ms/iteration", flush=True)
        return True

    def speaks(self) -> bool:
        """Whether this worker is the one that prints."""
        return int(dist.get_rank()) == 0


def due(iteration: int, every: int) -> bool:
    """Whether something that is done every so many iterations is to be done now; 0 = never."""
    return every > 0 and iteration % every == 0


def forever(loader: Any) -> Iterator[Any]:
    """Batches without an end."""
    while True:
        yield from loader


def pick_device(name: str) -> torch.device:
    """The processor, or one of the GPUs, which workers share when there are fewer of them."""
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU here; use --device cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def join_and_train(trainer: type[Trainer], options: argparse.Namespace, faults: Injection) -> None:
    """Join the other workers, train, leave."""
    device = pick_device(options.device)
    dist.init_process_group("gloo")
    try:
        with faults:
            trainer(options, faults, device).train()
    finally:
        gc.collect()  # a model holds its process groups, whose threads must end before the interpreter does
        dist.destroy_process_group()


def main() -> None:
    """Train with the fault that `EROICA_FAULT` names."""
    torch.set_num_threads(1)
    join_and_train(Trainer, options().parse_args(), inject(code=tokens))
