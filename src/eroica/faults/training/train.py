"""Trains a small language model on random tokens with several workers.

torchrun --nproc-per-node 4 train.py --iterations 500
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import default_collate

from eroica.faults import Injection, inject, plans_from_environment, read_plans

from . import tokens as token_code
from .data import RandomTokens, make_loader
from .layouts import Layout, make_layout
from .model import ModelSize


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000, help="optimizer steps at most")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many seconds; 0 = never")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="workers share the GPUs there are")
    parser.add_argument("--layout", choices=["ddp", "fsdp2", "pipeline"], default="ddp")
    parser.add_argument("--loader-workers", type=int, default=0, help="loader processes of each worker")
    parser.add_argument("--batch", type=int, default=8, help="sequences of each worker and forward pass")
    parser.add_argument("--accumulate", type=int, default=1, help="forward passes of each optimizer step")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1, help="threads of an operator; 0 = as the environment says")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="gradients exchanged together (layout ddp)")
    parser.add_argument("--serial-exchange", action="store_true", help="gradients one by one, after backward (ddp)")
    parser.add_argument("--first-layers", type=int, default=0, help="blocks of stage 0 (layout pipeline); 0 = half")
    parser.add_argument("--halve-rate-every", type=int, default=0, help="iterations between halvings of the rate")
    parser.add_argument("--evaluate-every", type=int, default=0, help="iterations between evaluations; 0 = never")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="iterations between checkpoints; 0 = never")
    parser.add_argument("--directory", type=Path, default=Path(), help="where checkpoints go")
    parser.add_argument("--log-every", type=int, default=50, help="iterations between lines")
    parser.add_argument("--pace-ms", type=float, default=0.0, help="sleep so long in each step, as if it computed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", default=None, help="a fault plan, JSON or name:key=value; else EROICA_FAULT")
    return parser.parse_args(arguments)


class Trainer:
    """The loop: batches in, optimizer steps out, now and then a line, an evaluation, a checkpoint."""

    def __init__(self, options: argparse.Namespace, faults: Injection, device: torch.device) -> None:
        self.options = options
        self.faults = faults
        self.started = time.monotonic()
        self.lap = (0, self.started)
        torch.manual_seed(options.seed)
        size = ModelSize(width=options.width, layers=options.layers, length=options.length)
        self.layout: Layout = make_layout(
            options.layout,
            size,
            device,
            options.accumulate,
            options.batch,
            bucket_mb=options.bucket_mb,
            first_layers=options.first_layers,
            serial=options.serial_exchange,
        )
        self.optimizer = torch.optim.AdamW(self.layout.module.parameters(), lr=1e-3)
        self.batches = _forever(self._make_loader(size, faults)) if self.layout.reads_data else itertools.repeat(None)
        self.checks = self._check_batches(size)

    def _make_loader(self, size: ModelSize, faults: Injection) -> Any:
        options = self.options
        seed = options.seed * 4096 + self.layout.data_number
        needed = options.iterations * options.accumulate * options.batch
        dataset = RandomTokens(min(needed, 200_000), size.length, size.vocabulary, seed)
        collate = faults.collate(default_collate)
        return make_loader(faults.dataset(dataset), options.batch, options.loader_workers, collate)

    def _check_batches(self, size: ModelSize) -> list[Tensor]:
        batch = self.options.batch
        dataset = RandomTokens(4 * batch, size.length, size.vocabulary, self.options.seed + 1)
        items = torch.stack([dataset[number] for number in range(len(dataset))])
        return list(items.split(batch))

    def train(self) -> None:
        """Run until the iterations or the seconds are used up."""
        for iteration in range(self.options.iterations):
            self.faults.iteration(iteration, self.layout.module)
            loss = self.train_step()
            for callback in self.faults.callbacks:
                callback(iteration + 1)
            self._report(iteration + 1, loss)
            if self._due(iteration + 1, self.options.halve_rate_every):
                self.halve_rate()
            if self._due(iteration + 1, self.options.evaluate_every):
                self.evaluate(iteration + 1)
            if self._due(iteration + 1, self.options.checkpoint_every):
                self.save_checkpoint()
            if self._out_of_time(iteration + 1):
                break

    def train_step(self) -> float | None:
        """One optimizer step; the mean loss of its batches where it is known."""
        losses = []
        time.sleep(self.options.pace_ms / 1000)
        for number in range(self.options.accumulate):
            last = number + 1 == self.options.accumulate
            losses.append(self.layout.run(next(self.batches), train=True, last_of_step=last))
        self.optimizer.step()
        self.optimizer.zero_grad()
        known = [loss for loss in losses if loss is not None]
        return sum(known) / len(known) if known else None

    def evaluate(self, iteration: int) -> None:
        """Loss on sequences that nobody trains on."""
        self.layout.module.eval()
        losses = [self.layout.run(self._check(tokens), train=False, last_of_step=True) for tokens in self.checks]
        self.layout.module.train()
        known = [loss for loss in losses if loss is not None]
        if known and self._speaks():
            print(f"iteration {iteration:5d}  evaluation loss {sum(known) / len(known):.4f}", flush=True)

    def _check(self, tokens: Tensor) -> Tensor | None:
        return tokens if self.layout.reads_data else None

    def halve_rate(self) -> None:
        """Learn half as fast from now on."""
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5

    def save_checkpoint(self) -> None:
        """Weights and optimizer state of this worker, over the last ones."""
        state = {"model": self.layout.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, self.options.directory / f"checkpoint-{dist.get_rank()}.pt")

    def _report(self, iteration: int, loss: float | None) -> None:
        if not self._due(iteration, self.options.log_every) or loss is None or not self._speaks():
            return
        before, then = self.lap
        now = time.monotonic()
        pace = (now - then) * 1000 / (iteration - before)
        self.lap = (iteration, now)
        print(f"iteration {iteration:5d}  loss {loss:.4f}  {pace:6.1f} ms/iteration", flush=True)

    def _speaks(self) -> bool:
        return int(dist.get_rank()) == (1 if self.options.layout == "pipeline" else 0)

    def _out_of_time(self, iteration: int) -> bool:
        """Whether to stop, the same answer on all workers; asked every ten iterations."""
        if self.options.seconds <= 0 or iteration % 10 != 0:
            return False
        over = torch.tensor(float(time.monotonic() - self.started > self.options.seconds))
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        return float(over) > 0

    @staticmethod
    def _due(iteration: int, every: int) -> bool:
        return every > 0 and iteration % every == 0


def _forever(loader: Any) -> Iterator[Any]:
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


def main() -> None:
    """Join the other workers, train, leave."""
    options = read_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    plans = plans_from_environment() if options.fault is None else read_plans(options.fault)
    device = pick_device(options.device)
    dist.init_process_group("gloo")
    try:
        with inject(*plans, code=token_code) as faults:
            Trainer(options, faults, device).train()
    finally:
        gc.collect()  # a model holds its process groups, whose threads must end before the interpreter does
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
