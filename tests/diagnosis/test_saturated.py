"""Loader processes that set the pace though a window hides the waiting for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, synthesize, synthesize_window
from support.fleet import Draft

seeds = pytest.mark.parametrize("seed", range(3))
#: Beside a window iterations are this much shorter than in it, and were that much shorter still when all was well.
OUTSIDE, BEST = 0.95, 0.8


@dataclass(frozen=True)
class BusyLoaders:
    """The loader processes of some workers work this share of the time."""

    workers: tuple[int, ...]
    share: float

    def apply(self, draft: Draft) -> None:
        """The rest of the time they wait for work."""
        whole_I = np.sum(list(draft.time_us.values()), axis=0).max(axis=0) + draft.transfer_us
        for key, time_WI in draft.child_us.items():
            working = key.name == "__getitem__"
            time_WI[list(self.workers)] = whole_I * (self.share if working else 1 - self.share)


def fleet(seed: int, share: float, workers: tuple[int, ...] = (0, 1, 2, 3), draw: int = 0) -> list[WorkerPattern]:
    plan = FleetPlan(workers=4, seed=seed, draw=draw, loader_workers=1)
    return synthesize(plan, [BusyLoaders(workers, share)], draw + 1)


def judged(before: Sequence[WorkerPattern], now: Sequence[WorkerPattern], purpose: str = "slow") -> Verdict:
    window = synthesize_window(now, purpose, before)  # type: ignore[arg-type]
    mean_s = float(window.current_iteration_s or 0)
    window = msgspec.structs.replace(window, baseline_iteration_s=BEST * mean_s, current_iteration_s=OUTSIDE * mean_s)
    return analyze("job", window, now, before)


@seeds
def test_processes_that_work_all_of_the_time_are_named_and_what_they_read(seed: int) -> None:
    verdict = judged(fleet(seed, 0.1), fleet(seed, 0.97, draw=1))
    found = verdict.cause
    assert found is not None, verdict.summary
    assert (found.cause, found.scope, found.workers) == ("slow-data-loading", "all", (0, 1, 2, 3))
    assert found.function.name == "__getitem__"
    assert found.gain == pytest.approx(1 - BEST / OUTSIDE, abs=0.001)
    assert "for a batch" in verdict.summary and "when the job was healthy" in verdict.summary


@seeds
def test_of_one_worker_alone_too(seed: int) -> None:
    now = fleet(seed, 0.97, (2,), draw=1)
    found = judged(fleet(seed, 0.1), now).cause
    assert found is not None
    assert (found.cause, found.scope, found.workers) == ("slow-data-loading", "some", (2,))


@seeds
@pytest.mark.parametrize(
    ("before", "share", "purpose"),
    [
        (0.1, 0.6, "slow"),  # they have time left
        (0.95, 0.97, "slow"),  # as ever
        (0.1, 0.97, "manual"),  # nobody finds the job slow
    ],
)
def test_otherwise_nobody_is(before: float, share: float, purpose: str, seed: int) -> None:
    assert judged(fleet(seed, before), fleet(seed, share, draw=1), purpose).cause is None


@seeds
def test_without_a_healthy_window_what_the_job_has_been_at_best_tells(seed: int) -> None:
    """A baseline that is refused, for the job was slow in it, leaves the trigger's figures."""
    now = fleet(seed, 0.97, draw=1)
    window = synthesize_window(now, "slow")
    mean_s = float(window.current_iteration_s or 0)
    window = msgspec.structs.replace(window, baseline_iteration_s=BEST * mean_s, current_iteration_s=OUTSIDE * mean_s)
    found = analyze("job", window, now).cause
    assert found is not None and (found.cause, found.scope) == ("slow-data-loading", "all")
    idle = fleet(seed, 0.6, draw=1)
    assert analyze("job", window, idle).cause is None
