"""Trains a small language model on random tokens with several workers: copies, shards or stages of it.

torchrun --nproc-per-node 4 train.py --iterations 500
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import default_collate

from eroica.demo.training import loop
from eroica.demo.training.data import RandomTokens, make_loader
from injected import inject, plans_from_environment, read_plans

from . import parts
from .layouts import Layout, make_layout


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = loop.options()
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many seconds; 0 = never")
    parser.add_argument("--layout", choices=["ddp", "fsdp2", "pipeline"], default="ddp")
    parser.add_argument("--loader-workers", type=int, default=0, help="loader processes of each worker")
    parser.add_argument("--accumulate", type=int, default=1, help="forward passes of each optimizer step")
    parser.add_argument("--threads", type=int, default=1, help="threads of an operator; 0 = as the environment says")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="gradients exchanged together (layout ddp)")
    parser.add_argument("--serial-exchange", action="store_true", help="gradients one by one, after backward (ddp)")
    parser.add_argument("--first-layers", type=int, default=0, help="blocks of stage 0 (layout pipeline); 0 = half")
    parser.add_argument("--halve-rate-every", type=int, default=0, help="iterations between halvings of the rate")
    parser.add_argument("--evaluate-every", type=int, default=0, help="iterations between evaluations; 0 = never")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="iterations between checkpoints; 0 = never")
    parser.add_argument("--directory", type=Path, default=Path(), help="where checkpoints go")
    parser.add_argument("--pace-ms", type=float, default=0.0, help="sleep so long in each step, as if it computed")
    parser.add_argument("--fault", default=None, help="a fault plan, name:key=value,key=value; else EROICA_FAULT")
    return parser.parse_args(arguments)


class Trainer(loop.Trainer):
    """The loop with layouts, accumulation, evaluations and checkpoints."""

    def build(self) -> None:
        """Spread the model over the workers, and make what it reads."""
        options = self.options
        self.started = time.monotonic()
        self.layout: Layout = make_layout(
            options.layout,
            self.size,
            self.device,
            options.accumulate,
            options.batch,
            bucket_mb=options.bucket_mb,
            first_layers=options.first_layers,
            serial=options.serial_exchange,
        )
        self.module = self.layout.module
        self.batches = loop.forever(self._make_loader()) if self.layout.reads_data else itertools.repeat(None)
        dataset = RandomTokens(4 * options.batch, self.size.length, self.size.vocabulary, options.seed + 1)
        self.checks = torch.stack([dataset[number] for number in range(len(dataset))]).split(options.batch)

    def _make_loader(self) -> object:
        options, size = self.options, self.size
        seed = options.seed * 4096 + self.layout.data_number
        needed = options.iterations * options.accumulate * options.batch
        dataset = RandomTokens(min(needed, 200_000), size.length, size.vocabulary, seed)
        collate = self.faults.collate(default_collate)
        return make_loader(self.faults.dataset(dataset), options.batch, options.loader_workers, collate)

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

    def after_step(self, iteration: int, loss: float | None) -> bool:
        """A line, an evaluation, a checkpoint, each now and then; whether to go on."""
        for callback in self.faults.callbacks:
            callback(iteration)
        super().after_step(iteration, loss)
        if loop.due(iteration, self.options.halve_rate_every):
            self.halve_rate()
        if loop.due(iteration, self.options.evaluate_every):
            self.evaluate(iteration)
        if loop.due(iteration, self.options.checkpoint_every):
            self.save_checkpoint()
        return not self._out_of_time(iteration)

    def evaluate(self, iteration: int) -> None:
        """Loss on sequences that nobody trains on."""
        self.layout.module.eval()
        losses = [self.layout.run(self._check(tokens), train=False, last_of_step=True) for tokens in self.checks]
        self.layout.module.train()
        known = [loss for loss in losses if loss is not None]
        if known and self.speaks():
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

    def speaks(self) -> bool:
        """Whether this worker is the one that prints."""
        return int(dist.get_rank()) == (1 if self.options.layout == "pipeline" else 0)

    def _out_of_time(self, iteration: int) -> bool:
        """Whether to stop, the same answer on all workers; asked every ten iterations."""
        if self.options.seconds <= 0 or iteration % 10 != 0:
            return False
        over = torch.tensor(float(time.monotonic() - self.started > self.options.seconds))
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        return float(over) > 0


def main() -> None:
    """Train with the fault that `--fault` or `EROICA_FAULT` names."""
    options = read_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    plans = plans_from_environment() if options.fault is None else read_plans(options.fault)
    loop.join_and_train(Trainer, options, inject(*plans, code=parts))


if __name__ == "__main__":
    main()
