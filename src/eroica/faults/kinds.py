"""The faults inside a step that make a job slow, each one real thing done to one resource; and the table of all."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

from eroica.faults.fault import Fault, HookedFault, Place, end_program, inner_module, start_program
from eroica.faults.hosts import HOSTS
from eroica.faults.loading import LOADING
from eroica.faults.stalls import STALLS, THROTTLE_PROGRAM
from eroica.faults.steps import STEPS


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

    def start(self, model: Any, place: Place) -> None:
        """Build the heap (this takes a moment, once) and hook the turn in front of the forward pass."""
        if self.handle is None:
            part = place.parts["objects"](int(self.entries), place.worker, round(place.workers * max(1.0, self.every)))
            self.handle = inner_module(model).register_forward_pre_hook(part)


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

    def start(self, model: Any, place: Place) -> None:
        """Hook the loop in front of the forward pass."""
        if self.handle is None:
            self.handle = inner_module(model).register_forward_pre_hook(place.parts["forward"](int(self.tokens)))


@dataclass
class SlowBackward(HookedFault):
    """A Python hook in the middle of the backward pass that visits `values` numbers one at a time."""

    name: ClassVar[str] = "slow-backward"
    resource: ClassVar[str] = "one core, interpreter lock"
    values: float = 700_000

    def start(self, model: Any, place: Place) -> None:
        """Hook it behind the middle one of the model's leaf modules that have weights of two dimensions."""
        if self.handle is None:
            part = place.parts["backward"](int(self.values))
            self.handle = _middle_layer(model).register_full_backward_hook(part.hook)


SLOW: tuple[type[Fault], ...] = (Fault, GcPause, SlowCompute, SlowPython, SlowBackward)
FAULTS: dict[str, type[Fault]] = {kind.name: kind for kind in (*SLOW, *LOADING, *STEPS, *HOSTS, *STALLS)}


def _middle_layer(model: Any) -> Any:
    """A layer whose input has a gradient: not the first one, which may be an embedding."""
    layers = [part for part in model.modules() if not list(part.children()) and hasattr(part, "in_features")]
    return layers[len(layers) // 2] if layers else model
