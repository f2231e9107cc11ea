"""Troubles that lie in what the code does: saving, logging, reading, waiting for the device, copying, many collectives.

Stacks end in frames of the libraries that real code would call; the user's own names are whatever the plan renames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.model.pattern import FunctionKey
from support.fleet import Draft
from support.troubles import Reads, spend

__all__ = ["ARRAYS", "HTTP", "LOGGING", "SAVING", "Calls", "Copies", "Reads", "spend"]

SAVING = (
    "save_state (project/train.py:90)",
    "save (torch/serialization.py:950)",
    "_save (torch/serialization.py:1180)",
)
LOGGING = (
    "report (project/train.py:130)",
    "info (logging/__init__.py:1480)",
    "emit (logging/__init__.py:1100)",
    "flush (logging/__init__.py:1080)",
)
HTTP = (
    "__getitem__ (project/dataset.py:41)",
    "_fetch (project/dataset.py:55)",
    "urlopen (urllib/request.py:190)",
    "getresponse (http/client.py:1380)",
    "readinto (socket.py:700)",
)
ARRAYS = (
    "__getitem__ (project/dataset.py:41)",
    "load (numpy/lib/_npyio_impl.py:310)",
    "read_array (numpy/lib/_format_impl.py:780)",
)


@dataclass(frozen=True)
class Calls:
    """A function below the loop of some workers takes `ms`, every `every` iterations.

    Attributes:
        frames: Its stack below the training loop.
        workers: Who; with `rotates`, one of them after the other.
        ms: How long each time.
        every: How often.
        use: Of a core meanwhile.
        rotates: One of the workers each time, in turn.
    """

    frames: tuple[str, ...]
    workers: tuple[int, ...]
    ms: float
    every: int = 1
    use: float = 0.3
    rotates: bool = False

    def apply(self, draft: Draft) -> None:
        at = np.arange(draft.shape[1])
        hit_I = at % self.every == self.every // 2
        time_WI = spend(draft, self.workers, self.ms, hit_I)
        if self.rotates:
            turn_I = np.asarray(self.workers)[(at // self.every) % len(self.workers)]
            time_WI = np.where(np.arange(draft.shape[0])[:, None] == turn_I, time_WI, 0.0)
        draft.add(draft.loop_frame(*self.frames, phase="other"), time_WI, 1 / self.every, self.use)


@dataclass(frozen=True)
class Copies:
    """Some workers run `count` more copies in forward, `ms` together; on a device they are memory operations."""

    workers: tuple[int, ...]
    ms: float
    count: int = 400

    def apply(self, draft: Draft) -> None:
        on_device = draft.plan.accelerator
        key = FunctionKey(
            kind="memory" if on_device else "compute",
            name="Memcpy DtoD (Device -> Device)" if on_device else "aten::copy_",
            phase="other" if on_device else "forward",
            thread="device" if on_device else "training",
        )
        if key in draft.count:
            draft.count[key] = draft.count[key].astype(np.float64)
        draft.add(key, spend(draft, self.workers, self.ms), self.count, 0.9)
