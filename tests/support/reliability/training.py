"""A small training that is the same to the bit in every run and says so: each loss and a hash of all parameters.

It knows nothing of Eroica. It goes on until a file appears, but computes at step n what it always computes at step n,
so that runs of different lengths can be compared. What users do besides training, it does at fixed steps.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

_FORK_AT, _SIGNALS_AT, _FAIL_AT = 12, 18, 40


class OutOfTimeError(Exception):
    """What the user's own time limit raises."""


def say(text: str) -> None:
    """One line, whole even where several processes write to one pipe."""
    os.write(1, f"{text}\n".encode())


class Surroundings:
    """Everything around the loop: who we are, when to stop, the user's signals and children."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.signals = 0
        self._profiler: Any = None
        self._profiled = 0
        signal.signal(signal.SIGUSR1, self._count)
        signal.signal(signal.SIGALRM, self._out_of_time)

    def before(self, step: int) -> None:
        """What the user's code does at this step."""
        if step == _FORK_AT:
            self._fork()
        if step == _SIGNALS_AT:
            self._signals()
        if step == _FAIL_AT and self.options.fails_once and self.generation == 0:
            sys.exit(1)
        if self.options.profile_when is not None:
            self._profile()

    def over(self) -> bool:
        """Whether somebody wants us to end; all ranks agree."""
        wanted = torch.tensor(float(self.options.end.exists()))
        if self.world > 1:
            torch.distributed.all_reduce(wanted)
        return bool(wanted > 0)

    def end(self) -> None:
        """End as the user's code does: in order, by an exception, or without a word."""
        if self.options.finish == "raise":
            raise ValueError("the user's own mistake")
        if self.options.finish == "exit":
            os._exit(7)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1

    def _out_of_time(self, number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    def _fork(self) -> None:
        """A child that computes and even steps an optimizer of its own."""
        child = os.fork()
        if not child:
            parameter = nn.Parameter(torch.ones(3))
            parameter.grad = torch.full((3,), 0.5)
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            for _ in range(3):
                optimizer.step()
            say(f"child of {self.rank}: {parameter.sum().item().hex()}")
            os._exit(5)
        say(f"child of {self.rank} ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")

    def _signals(self) -> None:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGUSR1)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            time.sleep(5)
        except OutOfTimeError:
            say(f"rank {self.rank}: {self.signals} signals, out of time")

    def _profile(self) -> None:
        """A profiler of the user's, once, from the moment that a file is there."""
        if self._profiler is None and self.options.profile_when.exists():
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self._profiler.start()
        elif self._profiler is not None and self._profiled < self.options.profiled_steps:
            self._profiled += 1
            if self._profiled == self.options.profiled_steps:
                self._profiler.stop()
                found = sum(event.name == "aten::addmm" for event in self._profiler.events())
                say(f"rank {self.rank} profiled {found} multiplications")


def digest(model: nn.Module) -> str:
    """A hash of all parameters, to the bit."""
    parts = (parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--end", type=Path, required=True, help="stop once this file exists")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--finish", choices=["return", "raise", "exit"], default="return")
    parser.add_argument("--fails-once", action="store_true")
    parser.add_argument("--profile-when", type=Path)
    parser.add_argument("--profiled-steps", type=int, default=8)
    parser.add_argument("--sabotage", action="store_true")
    return parser.parse_args()


def sabotage() -> None:
    """Break Eroica from inside, if it is there: its hooks read a clock that fails."""

    def broken() -> int:
        raise RuntimeError("no such luck")

    attach: Any = sys.modules.get("eroica.worker.attach")
    if attach is None:
        return
    clock = sys.modules["eroica.worker.pristine"].monotonic_ns
    for hook in attach._attachment.guest.hooks[:2]:
        hook.__defaults__ = tuple(broken if value is clock else value for value in hook.__defaults__)


def meet(around: Surroundings) -> None:
    """Join the others; each generation under names of its own, for gloo would find the addresses of the last one."""
    distributed: Any = torch.distributed
    store = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = distributed.PrefixStore(str(around.generation), store)
    distributed.init_process_group("gloo", store=store, rank=around.rank, world_size=around.world)


def main() -> None:
    """Train until told to stop."""
    options = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    around = Surroundings(options)
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
    if around.world > 1:
        meet(around)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(around.world, 64, 4, 16)[around.rank]
    batches = torch.utils.data.DataLoader(inputs, batch_size=None)
    step, over = 0, False
    while not over:
        for batch in batches:
            around.before(step)
            if step == _FAIL_AT and options.sabotage:
                sabotage()
            loss = (model(batch) - batch.mean(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(f"{around.generation}.{around.rank} {step} {loss.item().hex()} {digest(model)}")
            time.sleep(options.pause)
            step += 1
            over = step >= options.steps or around.over()
            if over:
                break
    around.end()
    if around.world > 1:
        torch.distributed.destroy_process_group()
    say(f"rank {around.rank} has ended in order, {around.signals} signals")


if __name__ == "__main__":
    main()
