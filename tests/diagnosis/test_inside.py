"""Operators that one Python function calls count as that function's; work that peers have too does not."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import FleetPlan, synthesize, synthesize_window
from support.fleet import Draft

FRAMES = ("collect (project/rollout.py:40)", "discount (project/returns.py:12)")
SELECT = FunctionKey(kind="compute", name="aten::select", phase="forward", thread="training")
seeds = pytest.mark.parametrize("seed", range(3))


class TinyTensors:
    """A function loops over the elements of a tensor: so much by itself, so much in operators."""

    def __init__(self, workers: Sequence[int], own_ms: float, inside_ms: float, collecting_ms: float = 0.0) -> None:
        self.workers, self.own_ms, self.inside_ms, self.collecting_ms = list(workers), own_ms, inside_ms, collecting_ms

    def apply(self, draft: Draft) -> None:
        """Collections come in one iteration of ten, as long as ten would be."""
        on_WI = np.zeros(draft.shape)
        on_WI[self.workers] = 1e3
        draft.add(draft.loop_frame(*FRAMES, phase="other"), self.own_ms * on_WI, 1.0, 0.95)
        draft.add(SELECT, self.inside_ms * on_WI, 2000.0, 0.95)
        if self.collecting_ms:
            seldom_I = np.where(np.arange(draft.shape[1]) % 10 == 5, 10.0, 0.0)
            collecting = FunctionKey(kind="gc", name="garbage collection", thread="training")
            draft.add(collecting, self.collecting_ms * on_WI * seldom_I, 0.1, 1.0)


def sampled_inside(patterns: Sequence[WorkerPattern], inside_ms: float) -> list[WorkerPattern]:
    """The patterns as a sampler sees them: stacks of the function are there during its operators, too."""
    changed = []
    for one in patterns:
        more_s = inside_ms / 1e3 * (one.last_iteration - one.first_iteration)
        rows = [
            msgspec.structs.replace(row, total_s=row.total_s + more_s) if row.key.name == "discount" else row
            for row in one.functions
        ]
        changed.append(msgspec.structs.replace(one, functions=tuple(rows)))
    return changed


def judge(trouble: TinyTensors, seen_ms: float, seed: int, purpose: WindowPurpose = "slow") -> Verdict:
    before = synthesize(FleetPlan(workers=4, seed=seed), (), 1)
    patterns = sampled_inside(synthesize(FleetPlan(workers=4, seed=seed, draw=1), [trouble], 2), seen_ms)
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before)


def causes(verdict: Verdict) -> list[Finding]:
    return [one for one in verdict.findings if one.role == "cause"]


@seeds
@pytest.mark.parametrize("own_ms", [20, 30, 60])
def test_operators_outside_the_function_stay_a_cause_of_their_own(seed: int, own_ms: float) -> None:
    """The samples of the function do not cover them."""
    verdict = judge(TinyTensors((1,), own_ms, 40), 0, seed)
    assert {one.cause for one in causes(verdict)} == {"load-imbalance", "python-on-critical-path"}, verdict.summary
    assert not any("Operators that it calls" in text for one in causes(verdict) for text in one.evidence)


@seeds
def test_a_function_that_peers_run_nearly_as_long_has_only_more_to_do(seed: int) -> None:
    class Uneven(TinyTensors):
        def apply(self, draft: Draft) -> None:
            TinyTensors((0, 1, 2, 3), 8, 0).apply(draft)
            super().apply(draft)

    before = synthesize(FleetPlan(workers=4, seed=seed), (), 1)
    patterns = sampled_inside(synthesize(FleetPlan(workers=4, seed=seed, draw=1), [Uneven((1,), 8, 40)], 2), 40)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert "load-imbalance" in [one.cause for one in causes(verdict)], verdict.summary
