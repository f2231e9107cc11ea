"""Loaders that are equally slow: chance says whose worker waits, so all that need as long for a batch are accused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.pipeline import analyze
from support import FleetPlan, synthesize, synthesize_window
from support.fleet import Draft

seeds = pytest.mark.parametrize("seed", range(3))


@dataclass(frozen=True)
class Loading:
    """What each worker waits for its batch, and the share of the time in which its loader processes work."""

    stalls_ms: tuple[float, ...]
    busy: tuple[float, ...]
    in_turn: bool = False

    def apply(self, draft: Draft) -> None:
        """The rest of the time the processes wait for orders."""
        noise = np.exp(draft.noise.normal(0, 0.1, draft.shape))
        stalls_WI = 1e3 * np.asarray(self.stalls_ms)[:, None] * noise
        if self.in_turn:
            stalls_WI = draft.noise.permuted(stalls_WI, axis=0)
        draft.add(draft.wait_for_batch(), stalls_WI, 1, 0.02)
        whole_I = np.sum(list(draft.time_us.values()), axis=0).max(axis=0) + draft.transfer_us
        busy_W1 = np.asarray(self.busy)[:, None]
        for key in draft.child_us:
            draft.child_us[key] = whole_I * (busy_W1 if key.name == "__getitem__" else 1 - busy_W1)


def fleet(seed: int, loading: Loading, draw: int = 0) -> list[WorkerPattern]:
    plan = FleetPlan(workers=4, seed=seed, draw=draw, loader_workers=1)
    return synthesize(plan, [loading], draw + 1)


@seeds
def test_that_one_after_another_waits_for_them_is_no_cause_of_its_own(seed: int) -> None:
    before = fleet(seed, Loading((1.0,) * 4, (0.1,) * 4))
    now = fleet(seed, Loading((10.0, 60.0, 10.0, 10.0), (0.95,) * 4, in_turn=True), draw=1)
    verdict = analyze("job", synthesize_window(now, "slow", before), now, before)
    causes = [(found.cause, found.scope) for found in verdict.findings if found.role == "cause"]
    assert causes == [("slow-data-loading", "all")]
