"""Troubles that lie in what the code does: saving, logging, reading, waiting for the device, copying, many collectives.

Stacks end in frames of the libraries that real code would call; the user's own names are whatever the plan renames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey
from support.fleet import Draft

Floats = NDArray[np.float64]
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
IMAGES = ("__getitem__ (project/dataset.py:41)", "convert (PIL/Image.py:950)", "load (PIL/ImageFile.py:180)")


def spend(draft: Draft, workers: tuple[int, ...], ms: float, hit_I: NDArray[np.bool_] | None = None) -> Floats:
    """About `ms` on some workers, in all or some iterations. float64 [W, I]."""
    time_WI = np.zeros(draft.shape)
    noise = np.exp(draft.noise.normal(0, 0.1, (len(workers), draft.shape[1])))
    time_WI[list(workers)] = ms * 1e3 * noise * (1.0 if hit_I is None else hit_I)
    return time_WI


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
        """More of that function."""
        at = np.arange(draft.shape[1])
        hit_I = at % self.every == self.every // 2
        time_WI = spend(draft, self.workers, self.ms, hit_I)
        if self.rotates:
            turn_I = np.asarray(self.workers)[(at // self.every) % len(self.workers)]
            time_WI = np.where(np.arange(draft.shape[0])[:, None] == turn_I, time_WI, 0.0)
        draft.add(draft.loop_frame(*self.frames, phase="other"), time_WI, 1 / self.every, self.use)


@dataclass(frozen=True)
class Reads:
    """The dataset takes `ms` more in the function that ends in `frames`, in next or in loader processes."""

    frames: tuple[str, ...]
    workers: tuple[int, ...]
    ms: float
    use: float = 0.03

    def apply(self, draft: Draft) -> None:
        """Longer in the dataset, and with loader processes longer in the wait for them."""
        time_WI = spend(draft, self.workers, self.ms)
        key = draft.loader_frame(*self.frames)
        if not draft.plan.loader_workers:
            draft.add(key, time_WI, 8, self.use)
            return
        draft.add(draft.wait_for_batch(), time_WI, 1, 0.02)
        healthy_us = 60_000 * draft.plan.scale
        draft.child_us[key] = np.where(time_WI > 0, (time_WI + healthy_us) * draft.plan.loader_workers * 0.95, 0.0)


@dataclass(frozen=True)
class Copies:
    """Some workers run `count` more copies in forward, `ms` together; on a device they are memory operations."""

    workers: tuple[int, ...]
    ms: float
    count: int = 400

    def apply(self, draft: Draft) -> None:
        """More copies."""
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
