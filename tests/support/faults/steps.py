"""Faults of what a training does besides its steps, and healthy behaviours that look like them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from typing import Any, ClassVar

from eroica.demo.fault import Fault, HookedFault, Place, end_program, start_program
from support.faults.stalls import STORAGE_PROGRAM


@dataclass
class CalledFault(Fault):
    """Base of faults that the training calls after each step."""

    part: Any = field(default=None, init=False, repr=False)
    callbacks: list[Any] = field(default_factory=list, init=False, repr=False)

    def build(self, place: Place) -> Any:
        """The part that is called."""
        raise NotImplementedError

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
    resource: ClassVar[str] = "disk"
    megabytes: float = 150
    every: float = 5

    def build(self, place: Place) -> Any:
        """What writes."""
        return place.parts["state"](self.megabytes, max(1, int(self.every)))


@dataclass
class BlockingLog(CalledFault):
    """The worker sends a line to a log server in each step, which takes `delay_s` to answer."""

    name: ClassVar[str] = "blocking-log"
    resource: ClassVar[str] = "a server"
    delay_s: float = 0.06
    server: Any = field(default=None, init=False, repr=False)

    def build(self, place: Place) -> Any:
        """What logs, behind its server."""
        self.server = start_program(STORAGE_PROGRAM, os.getpid(), "--delay-s", self.delay_s, stdout=subprocess.PIPE)
        return place.parts["log"](int(self.server.stdout.readline()))

    def stop(self) -> None:
        """No log, no server."""
        super().stop()
        end_program(self.server)
        self.server = None


@dataclass
class MemoryCopies(CalledFault):
    """The worker copies a buffer of `megabytes` `copies` times in each step."""

    name: ClassVar[str] = "memory-copies"
    resource: ClassVar[str] = "memory bandwidth"
    megabytes: float = 48
    copies: float = 4

    def build(self, place: Place) -> Any:
        """What copies."""
        return place.parts["copies"](self.megabytes, int(self.copies))


@dataclass
class TinyCollectives(CalledFault):
    """All workers add `tensors` numbers up in each step, each in a collective of its own. Needs all of them."""

    name: ClassVar[str] = "tiny-collectives"
    resource: ClassVar[str] = "latency of collectives"
    tensors: float = 80

    def build(self, place: Place) -> Any:
        """What reduces."""
        return place.parts["norms"](int(self.tensors))


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


@dataclass
class NeedlessSync(HookedFault):
    """Gradients are exchanged after each of the backward passes of a step, though only the last one needs it."""

    name: ClassVar[str] = "needless-sync"
    resource: ClassVar[str] = "latency of collectives"

    def start(self, model: Any, place: Place) -> None:
        """Hook what asks for it in front of the wrapper's forward pass."""
        if self.handle is None:
            self.handle = model.register_forward_pre_hook(place.parts["exchange"]())


@dataclass
class BusyThread(CalledFault):
    """A second thread of the worker computes in Python without a pause: the training thread has to share the lock."""

    name: ClassVar[str] = "busy-thread"
    resource: ClassVar[str] = "interpreter lock"

    def build(self, place: Place) -> Any:
        """The thread; being called does nothing, so nobody calls it."""
        return place.parts["thread"]()

    def start(self, model: Any, place: Place) -> None:
        """Let it run from now on."""
        if self.part is None:
            self.part = self.build(place)

    def stop(self) -> None:
        """Let it end."""
        if self.part is not None:
            self.part.close()
        self.part = None


@dataclass
class AnomalyMode(Fault):
    """Autograd's anomaly detection, left on: stacks in forward, a check of every gradient in backward."""

    name: ClassVar[str] = "anomaly-mode"
    resource: ClassVar[str] = "one core, interpreter lock"

    def start(self, model: Any, place: Place) -> None:
        """On."""
        self._set(True)

    def stop(self) -> None:
        """Off."""
        self._set(False)

    @staticmethod
    def _set(on: bool) -> None:
        import torch

        torch.autograd.set_detect_anomaly(on)


@dataclass
class WarmUp(CalledFault):
    """Healthy: the first `steps` iterations take longer, less and less so, on all workers."""

    name: ClassVar[str] = "warm-up"
    steps: float = 80
    tries: float = 200

    def build(self, place: Place) -> Any:
        """What tries kernels."""
        return place.parts["tuning"](int(self.steps), int(self.tries))


@dataclass
class PauseOfAll(CalledFault):
    """Healthy: all workers stop once, for `seconds`, and go on."""

    name: ClassVar[str] = "pause-of-all"
    seconds: float = 4

    def build(self, place: Place) -> Any:
        """What takes a break."""
        return place.parts["break"](self.seconds)


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
