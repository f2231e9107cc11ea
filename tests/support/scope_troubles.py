"""Troubles by whom they hit: another worker in each iteration, a whole stage, rank 0 alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from support.fleet import Draft

Floats = NDArray[np.float64]


def _wandering(draft: Draft, chance: float = 0.8) -> Floats:
    """1 for who is hit: with a chance in each iteration, a worker drawn anew. float64 [W, I]."""
    hit_WI = np.zeros(draft.shape)
    for iteration in np.flatnonzero(draft.noise.random(draft.shape[1]) < chance):
        hit_WI[draft.noise.choice(draft.shape[0], size=1, replace=False), iteration] = 1.0
    return hit_WI


@dataclass(frozen=True)
class WanderingPause:
    """In most iterations another worker spends `ms` in one Python function, outside the model."""

    ms: float
    chance: float = 0.8
    frame: str = "save_shard (project/checkpoint.py:30)"

    def apply(self, draft: Draft) -> None:
        time_WI = self.ms * 1e3 * _wandering(draft, self.chance)
        draft.add(draft.loop_frame(self.frame, phase="other"), time_WI, self.chance / draft.shape[0], 0.1)


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
