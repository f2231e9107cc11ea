"""What every fault is: something real done to one resource, started and stopped at iteration boundaries.

A fault is built on each worker that has it. It brings no frame of its own into the training thread's stack while it
works: what runs there is the code of its parts (`PARTS` of `eroica.demo.training.tokens`, or of any module that offers
the same places under other names).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple


class Place(NamedTuple):
    """Where a fault is built in.

    Attributes:
        worker: This worker's global rank.
        workers: Workers of the job.
        parts: What can be built in, by name ("dataset", "forward", "objects", ...).
        callbacks: What the training calls after each step, with the step's number.
    """

    worker: int
    workers: int
    parts: dict[str, Any]
    callbacks: list[Callable[[int], None]]


@dataclass
class Fault:
    """Base: does nothing."""

    name: ClassVar[str] = "none"
    resource: ClassVar[str] = "nothing"

    def wrap_dataset(self, dataset: Any, place: Place) -> Any:
        """The dataset that the loader shall read; called once, before the loader exists."""
        return dataset

    def wrap_collate(self, collate: Any, place: Place) -> Any:
        """What the loader shall make batches with; called once, before the loader exists."""
        return collate

    def prepare(self, model: Any, place: Place) -> None:
        """Called once on every worker of the job, with the fault or not, before the first iteration."""

    def start(self, model: Any, place: Place) -> None:
        """The fault is there from now on."""

    def stop(self) -> None:
        """It is gone from now on; also called when the job ends."""

    def close(self) -> None:
        """The training is over, whether the fault was ever there or not: end what was built in before it."""


@dataclass
class HookedFault(Fault):
    """Base of faults that a torch hook brings into the training, in front of each forward pass."""

    handle: Any = field(default=None, init=False, repr=False)

    def build(self, place: Place) -> Any:
        """The part that is hooked in."""
        raise NotImplementedError

    def start(self, model: Any, place: Place) -> None:
        """Hook it into the user's own module."""
        if self.handle is None:
            self.handle = inner_module(model).register_forward_pre_hook(self.build(place))

    def stop(self) -> None:
        """Unhook it; what it holds goes with it."""
        if self.handle is not None:
            self.handle.remove()
        self.handle = None


def inner_module(model: Any) -> Any:
    """The user's own module behind a wrapper such as `DistributedDataParallel`."""
    return getattr(model, "module", model)


def start_program(program: Path, *arguments: object, **streams: Any) -> subprocess.Popen[bytes]:
    """Start one of our programs beside this process, out of reach of the terminal's Ctrl-C."""
    command = [sys.executable, "-I", "-S", str(program), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **streams)


def end_program(program: subprocess.Popen[bytes] | None) -> None:
    """End it, if there is one, and wait until it is gone."""
    if program is None:
        return
    program.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(timeout=5)
    if program.stdout is not None:
        program.stdout.close()
