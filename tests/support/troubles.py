"""What can be wrong with a synthetic fleet. Each trouble changes a draft's times in place, as a real fault would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from support.fleet import Draft

Floats = NDArray[np.float64]


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
    frame: str = "_score_tokens (project/tokens.py:30)"

    def apply(self, draft: Draft) -> None:
        everybody = tuple(range(draft.shape[0]))
        key = draft.forward_frame("__call__ (project/tokens.py:20)", self.frame)
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
