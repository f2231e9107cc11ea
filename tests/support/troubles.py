"""What can be wrong with a synthetic fleet. Each trouble changes a draft's times in place, as a real fault would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from support.fleet import Draft

Floats = NDArray[np.float64]

#: Stacks of what the code does, which end in frames of the libraries that real code would call.
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


class Trouble(Protocol):
    """Anything that changes a draft."""

    def apply(self, draft: Draft) -> None:
        """Change the draft's times in place."""


def spend(draft: Draft, workers: tuple[int, ...], ms: float, hit_I: NDArray[np.bool_] | None = None) -> Floats:
    """About `ms` on some workers, in all or some iterations. float64 [W, I]."""
    time_WI = np.zeros(draft.shape)
    noise = np.exp(draft.noise.normal(0, 0.1, (len(workers), draft.shape[1])))
    time_WI[list(workers)] = ms * 1e3 * noise * (1.0 if hit_I is None else hit_I)
    return time_WI


@dataclass(frozen=True)
class Reads:
    """The dataset takes `ms` more in the function that ends in `frames`, in next or in loader processes."""

    frames: tuple[str, ...]
    workers: tuple[int, ...]
    ms: float
    use: float = 0.03

    def apply(self, draft: Draft) -> None:
        time_WI = spend(draft, self.workers, self.ms)
        key = draft.loader_frame(*self.frames)
        if not draft.plan.loader_workers:
            draft.add(key, time_WI, 8, self.use)
            return
        draft.add(draft.wait_for_batch(), time_WI, 1, 0.02)
        healthy_us = 60_000 * draft.plan.scale
        draft.child_us[key] = np.where(time_WI > 0, (time_WI + healthy_us) * draft.plan.loader_workers * 0.95, 0.0)


@dataclass(frozen=True)
class Calls:
    """A function below the loop of some workers takes `ms`, every `every` iterations.

    Attributes:
        frames: Its stack below the training loop.
        workers: Who.
        ms: How long each time.
        every: How often.
        use: Of a core meanwhile.
    """

    frames: tuple[str, ...]
    workers: tuple[int, ...]
    ms: float
    every: int = 1
    use: float = 0.3

    def apply(self, draft: Draft) -> None:
        time_WI = spend(draft, self.workers, self.ms, np.arange(draft.shape[1]) % self.every == self.every // 2)
        draft.add(draft.loop_frame(*self.frames, phase="other"), time_WI, 1 / self.every, self.use)


@dataclass(frozen=True)
class WanderingPause:
    """In most iterations another worker, drawn anew, spends `ms` in one Python function, outside the model."""

    ms: float
    chance: float = 0.8
    frame: str = "save_shard (project/checkpoint.py:30)"

    def apply(self, draft: Draft) -> None:
        time_WI = np.zeros(draft.shape)
        for iteration in np.flatnonzero(draft.noise.random(draft.shape[1]) < self.chance):
            time_WI[draft.noise.choice(draft.shape[0], size=1, replace=False), iteration] = self.ms * 1e3
        draft.add(draft.loop_frame(self.frame, phase="other"), time_WI, self.chance / draft.shape[0], 0.1)


@dataclass(frozen=True)
class SlowLoader:
    """The datasets of some workers wait for storage `ms` an iteration; so does the training thread."""

    workers: tuple[int, ...]
    ms: float
    frame: str = "_read_block (project/dataset.py:70)"

    def apply(self, draft: Draft) -> None:
        Reads(("__getitem__ (project/dataset.py:41)", self.frame), self.workers, self.ms, 0.02).apply(draft)


@dataclass(frozen=True)
class SlowCompute:
    """All that some workers do takes `factor` times as long: their processes are stopped now and then, or throttled."""

    workers: tuple[int, ...]
    factor: float
    fact: str = "stopped"

    def apply(self, draft: Draft) -> None:
        members = list(self.workers)
        for key in draft.time_us:
            if not draft.plan.accelerator or key.kind == "compute":
                draft.time_us[key][members] *= self.factor
                draft.utilization[key][members] /= self.factor
        for worker in members:
            draft.facts[worker][self.fact] = draft.facts[worker].get(self.fact, 0.0) + 1 - 1 / self.factor


@dataclass(frozen=True)
class SlowStage:
    """All workers of one pipeline stage compute more slowly than they did.

    Attributes:
        stage: Its place.
        factor: By how much.
    """

    stage: int
    factor: float

    def apply(self, draft: Draft) -> None:
        members = np.arange(draft.shape[0]) % draft.plan.stages == self.stage
        for key in draft.time_us:
            if key.kind == "compute":
                draft.time_us[key][members] *= self.factor


@dataclass(frozen=True)
class LargerBatches:
    """Forward and backward take `factor` times as long in as many operators, on these workers; on all without any."""

    factor: float
    workers: tuple[int, ...] = ()

    def apply(self, draft: Draft) -> None:
        members = list(self.workers) or slice(None)
        for key, time_WI in draft.time_us.items():
            if key.kind == "compute" and key.phase in ("forward", "backward"):
                time_WI[members] *= self.factor


@dataclass(frozen=True)
class BusyHost(SlowCompute):
    """The same because threads that are ready to run wait for a core."""

    fact: str = "run_queue_wait"


@dataclass(frozen=True)
class SlowPython:
    """All workers run `ms` more Python in forward."""

    ms: float

    def apply(self, draft: Draft) -> None:
        everybody = tuple(range(draft.shape[0]))
        key = draft.forward_frame("__call__ (project/tokens.py:20)", "_score_tokens (project/tokens.py:30)")
        draft.add(key, spend(draft, everybody, self.ms), 1, 1.0)


@dataclass(frozen=True)
class BackwardHook:
    """A Python hook in the backward pass of some workers takes `ms`."""

    workers: tuple[int, ...]
    ms: float
    frame: str = "scale_grad (project/tokens.py:80)"

    def apply(self, draft: Draft) -> None:
        draft.add(draft.backward_frame(self.frame), spend(draft, self.workers, self.ms), 1, 1.0)


@dataclass(frozen=True)
class SlowLink:
    """The collectives themselves take `ms` longer, on everybody."""

    ms: float

    def apply(self, draft: Draft) -> None:
        draft.transfer_us = draft.transfer_us + self.ms * 1e3


@dataclass(frozen=True)
class SlowHostLink:
    """The network links of some hosts (their numbers) make the collectives `ms` longer, on everybody."""

    hosts: tuple[int, ...]
    ms: float

    def apply(self, draft: Draft) -> None:
        draft.transfer_us = draft.transfer_us + self.ms * 1e3
        draft.link_us.update(dict.fromkeys(self.hosts, self.ms * 1e3))


@dataclass(frozen=True)
class UnevenWork:
    """Some workers run a `share` more operators, each as fast as before."""

    workers: tuple[int, ...]
    share: float

    def apply(self, draft: Draft) -> None:
        members = list(self.workers)
        for key in draft.time_us:
            if key.kind == "compute" and key.phase in ("forward", "backward"):
                draft.time_us[key][members] *= 1 + self.share
                draft.count[key][members] *= 1 + self.share
