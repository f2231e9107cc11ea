"""Faults of what a training does besides its steps, and healthy behaviours that look like them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from eroica.demo.faults import Fault, HookedFault, Place, end_program, start_program
from injected.stalls import STORAGE_PROGRAM


@dataclass
class CalledFault(Fault):
    """Base of faults whose part, `made_of` of `Place.parts`, the training calls after each step.

    The part is given the fault's options, each as a number of the default's type.
    """

    made_of: ClassVar[str]
    part: Any = field(default=None, init=False, repr=False)
    callbacks: list[Any] = field(default_factory=list, init=False, repr=False)

    def build(self, place: Place) -> Any:
        """The part that is called."""
        options = [(getattr(self, one.name), one.default) for one in fields(self) if one.init]
        return place.parts[self.made_of](*(int(value) if isinstance(usual, int) else value for value, usual in options))

    def start(self, model: Any, place: Place) -> None:
        """Have it called from now on."""
        if self.part is None:
            self.part, self.callbacks = self.build(place), place.callbacks
            place.callbacks.append(self.part)

    def stop(self) -> None:
        """Have it called no more."""
        if self.part is None:
            return
        self.callbacks.remove(self.part)
        if hasattr(self.part, "close"):
            self.part.close()
        self.part = None


@dataclass
class BlockingCheckpoint(CalledFault):
    """The worker writes `megabytes` of state in every `every`-th step and waits until they are on disk."""

    name: ClassVar[str] = "blocking-checkpoint"
    made_of: ClassVar[str] = "state"
    megabytes: float = 150.0
    every: int = 5


@dataclass
class BlockingLog(CalledFault):
    """The worker sends a line to a log server in each step, which takes `delay_s` to answer."""

    name: ClassVar[str] = "blocking-log"
    delay_s: float = 0.06
    server: Any = field(default=None, init=False, repr=False)

    def build(self, place: Place) -> Any:
        self.server = start_program(STORAGE_PROGRAM, os.getpid(), "--delay-s", self.delay_s, stdout=subprocess.PIPE)
        return place.parts["log"](int(self.server.stdout.readline()))

    def stop(self) -> None:
        super().stop()
        end_program(self.server)
        self.server = None


@dataclass
class MemoryCopies(CalledFault):
    """The worker copies a buffer of `megabytes` `copies` times in each step."""

    name: ClassVar[str] = "memory-copies"
    made_of: ClassVar[str] = "copies"
    megabytes: float = 48.0
    copies: int = 4


@dataclass
class TinyCollectives(CalledFault):
    """All workers add `tensors` numbers up in each step, each in a collective of its own. Needs all of them."""

    name: ClassVar[str] = "tiny-collectives"
    made_of: ClassVar[str] = "norms"
    tensors: int = 80


@dataclass
class SlowBackward(HookedFault):
    """A Python hook in the middle of the backward pass that visits `values` numbers one at a time."""

    name: ClassVar[str] = "slow-backward"
    values: float = 700_000

    def start(self, model: Any, place: Place) -> None:
        """Hook it behind the middle one of the model's leaf modules that have weights of two dimensions."""
        part = place.parts["backward"](int(self.values))
        self.handle = _middle_layer(model).register_full_backward_hook(part.hook)


@dataclass
class NeedlessSync(HookedFault):
    """Gradients are exchanged after each of the backward passes of a step, though only the last one needs it."""

    name: ClassVar[str] = "needless-sync"

    def start(self, model: Any, place: Place) -> None:
        self.handle = model.register_forward_pre_hook(place.parts["exchange"]())


@dataclass
class BusyThread(CalledFault):
    """A second thread of the worker computes in Python without a pause: the training thread has to share the lock."""

    name: ClassVar[str] = "busy-thread"
    made_of: ClassVar[str] = "thread"

    def start(self, model: Any, place: Place) -> None:
        if self.part is None:
            self.part = self.build(place)

    def stop(self) -> None:
        if self.part is not None:
            self.part.close()
        self.part = None


@dataclass
class AnomalyMode(Fault):
    """Autograd's anomaly detection, left on: stacks in forward, a check of every gradient in backward."""

    name: ClassVar[str] = "anomaly-mode"

    def start(self, model: Any, place: Place) -> None:
        self._set(True)

    def stop(self) -> None:
        self._set(False)

    @staticmethod
    def _set(on: bool) -> None:
        import torch

        torch.autograd.set_detect_anomaly(on)


@dataclass
class WarmUp(CalledFault):
    """Healthy: the first `steps` iterations take longer, less and less so, on all workers."""

    name: ClassVar[str] = "warm-up"
    made_of: ClassVar[str] = "tuning"
    steps: int = 80
    tries: int = 200


@dataclass
class PauseOfAll(CalledFault):
    """Healthy: all workers stop once, for `seconds`, and go on."""

    name: ClassVar[str] = "pause-of-all"
    made_of: ClassVar[str] = "break"
    seconds: float = 4.0


def _middle_layer(model: Any) -> Any:
    """A layer whose input has a gradient: not the first one, which may be an embedding."""
    layers = [part for part in model.modules() if not list(part.children()) and hasattr(part, "in_features")]
    return layers[len(layers) // 2] if layers else model


#: Faults that lie in the training's own arguments, and healthy behaviours: name, resource, what it is.
_ARGUMENTS = (
    ("serial-collectives", "latency of collectives", "Gradients are exchanged one by one once backward is over."),
    ("heavy-stage", "the cut of the model", "The first pipeline stage has more layers than the second."),
    ("small-buckets", "latency of collectives", "Gradients are exchanged one by one: buckets are too small for two."),
    ("evaluation", "nothing", "Healthy: the job evaluates now and then, as it always has."),
    ("checkpoints", "nothing", "Healthy: every worker saves its small state now and then, as it always has."),
    ("learning-rate", "nothing", "Healthy: the learning rate is halved now and then."),
)


STEPS: tuple[type[Fault], ...] = (
    SlowBackward,
    BlockingCheckpoint,
    BlockingLog,
    MemoryCopies,
    TinyCollectives,
    NeedlessSync,
    BusyThread,
    AnomalyMode,
    WarmUp,
    PauseOfAll,
    *(type(name, (Fault,), {"name": name, "resource": of, "__doc__": about}) for name, of, about in _ARGUMENTS),
)
