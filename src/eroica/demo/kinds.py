"""The five faults of the demo: storage, collections, processor, Python code, and a collective that one worker skips."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from eroica.demo.fault import Fault, HookedFault, Place, end_program, inner_module, start_program
from eroica.errors import UsageError

THROTTLE_PROGRAM = Path(__file__).with_name("throttle.py")


@dataclass
class SteeredFault(Fault):
    """Base of faults that a shared number steers, which loader processes see change."""

    number: Any = field(default=None, init=False, repr=False)
    now: float = field(default=0.0, init=False, repr=False)

    def strength(self) -> float:
        """The number while the fault is there."""
        raise NotImplementedError

    def shared_number(self) -> Any:
        """The number, to be given to a part."""
        if self.number is None:
            self.number = multiprocessing.get_context("spawn").RawValue(ctypes.c_double, self.now)
        return self.number

    def start(self, model: Any, place: Place) -> None:
        """Strong from now on."""
        self._set(self.strength())

    def stop(self) -> None:
        """Without effect again."""
        self._set(0.0)

    def _set(self, number: float) -> None:
        self.now = number
        if self.number is not None:
            self.number.value = number


@dataclass
class SlowLoader(SteeredFault):
    """The worker's dataset waits for storage: each item takes `seconds` more, on no processor at all.

    Works in loader processes too. There the loader prefetches, so it costs nothing until items take longer than
    iteration x loader processes / batch.
    """

    name: ClassVar[str] = "slow-loader"
    resource: ClassVar[str] = "storage"
    seconds: float = 0.0075

    def strength(self) -> float:
        """Seconds per item."""
        return self.seconds

    def wrap_dataset(self, dataset: Any, place: Place) -> Any:
        """The dataset behind slow storage; slow once the fault is there."""
        return place.parts["dataset"](dataset, self.shared_number())


@dataclass
class GcPause(HookedFault):
    """Cyclic garbage collections that wander over the workers, in one iteration of `every` on average.

    Python's own collector does the work, on one core, holding the interpreter lock: it frees a tenth of `entries` small
    cycles and looks at every object of the process (torch alone brings some 200,000). Which worker has its turn, if
    any, is drawn anew each time, the same draw on all: nobody is slower than the others over a minute, but all wait.
    """

    name: ClassVar[str] = "gc-pause"
    resource: ClassVar[str] = "one core, interpreter lock"
    entries: float = 40_000
    every: float = 3

    def build(self, place: Place) -> Any:
        """The heap, which takes a moment, and the turns."""
        return place.parts["objects"](int(self.entries), place.worker, round(place.workers * max(1.0, self.every)))


@dataclass
class SlowCompute(Fault):
    """The worker's process runs `run_ms` and is stopped `stop_ms`, over and over, by a program beside it.

    The same work takes longer, whatever it is: what a throttled or stolen processor looks like from inside.
    """

    name: ClassVar[str] = "slow-compute"
    resource: ClassVar[str] = "processor speed"
    run_ms: float = 4.0
    stop_ms: float = 16.0
    helper: Any = field(default=None, init=False, repr=False)

    def start(self, model: Any, place: Place) -> None:
        """Start the program beside this process."""
        if self.helper is None:
            self.helper = start_program(THROTTLE_PROGRAM, os.getpid(), self.run_ms, self.stop_ms)

    def stop(self) -> None:
        """End it and wait until it is gone: the process runs freely afterwards."""
        end_program(self.helper)
        self.helper = None


@dataclass
class SlowPython(HookedFault):
    """More pure Python in front of each forward pass: `tokens` turns of a small loop, on one core."""

    name: ClassVar[str] = "slow-python"
    resource: ClassVar[str] = "one core, interpreter lock"
    tokens: float = 180_000

    def build(self, place: Place) -> Any:
        """The loop."""
        return place.parts["forward"](int(self.tokens))


@dataclass
class Hang(Fault):
    """The worker skips one collective that all others enter, and goes on to the next one: a desynchronized job.

    Before each forward pass all workers agree on a number in a process group made for it. That has its price, so the
    agreement exists only in jobs that have this fault. A skipped collective never ends by itself.
    """

    name: ClassVar[str] = "hang"
    resource: ClassVar[str] = "a collective"
    agreement: Any = field(default=None, init=False, repr=False)
    handle: Any = field(default=None, init=False, repr=False)

    def prepare(self, model: Any, place: Place) -> None:
        """Build the agreement into every worker."""
        if place.workers < 2:
            raise UsageError("the fault hang needs at least two workers: one cannot miss a collective alone")
        self.agreement = place.parts["agreement"]()
        self.handle = inner_module(model).register_forward_pre_hook(self.agreement)

    def start(self, model: Any, place: Place) -> None:
        """Do not take part the next time."""
        self.agreement.unchanged = True

    def close(self) -> None:
        """Unhook it; not before, for all workers must go on to take part in it."""
        if self.handle is not None:
            self.handle.remove()


FAULTS: dict[str, type[Fault]] = {
    kind.name: kind for kind in (Fault, SlowLoader, GcPause, SlowCompute, SlowPython, Hang)
}
