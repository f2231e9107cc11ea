"""Windows in which somebody could be accused with confidence for what is somebody else's, older, or no fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest

from eroica.model.pattern import FunctionPattern, WorkerPattern
from eroica.model.rows import RowTable
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, SlowCompute, synthesize, synthesize_window
from support.code_troubles import Calls
from support.fleet import Draft, accused

EVERYBODY = tuple(range(8))
seeds = pytest.mark.parametrize("seed", range(3))


def devices(seed: int, **more: object) -> FleetPlan:
    return FleetPlan(**{"workers": 8, "accelerator": True, "seed": seed, **more})  # type: ignore[arg-type]


def judged(now: Sequence[WorkerPattern], before: Sequence[WorkerPattern] = (), workers: int = 8) -> Verdict:
    window = synthesize_window(now, "slow" if before else "manual", before)
    return analyze("job", window, now, before, expected_workers=workers)


def changed_rows(pattern: WorkerPattern, mu: float | None) -> WorkerPattern:
    """The pattern with this use of the processor in its operators; None: nobody sampled it."""
    facts = {"resource_samples": 0, "resource": ""} if mu is None else {"mu": mu}
    rows: list[FunctionPattern] = [
        msgspec.structs.replace(row, **facts) if row.key.kind == "compute" else row
        for row in RowTable.of(pattern.functions)
    ]
    return msgspec.structs.replace(pattern, functions=tuple(rows))


# --- windows of few long iterations ---


@seeds
@pytest.mark.parametrize("iterations", [2, 3])
def test_nobody_does_in_healthy_ones(iterations: int, seed: int) -> None:
    assert accused(judged(synthesize(devices(seed, iterations=iterations, scale=120.0), (), 2))) == []


# --- sequences that have grown ---


@dataclass(frozen=True)
class LongerSequences:
    """Forward and backward of some workers take `factor` times as long."""

    factor: float
    workers: tuple[int, ...] = EVERYBODY

    def apply(self, draft: Draft) -> None:
        """Longer where data goes through."""
        for key, time_WI in draft.time_us.items():
            if key.kind == "compute" and key.phase in ("forward", "backward"):
                time_WI[list(self.workers)] *= self.factor


@seeds
def test_a_clock_that_accounts_for_it_is(seed: int) -> None:
    before = [changed_rows(one, 0.9) for one in synthesize(devices(seed, draw=1), (), 1)]
    after = [changed_rows(one, 0.9 / 1.3) for one in synthesize(devices(seed), [LongerSequences(1.35)], 2)]
    assert [cause for cause, _ in accused(judged(after, before))] == ["compute-slow"]


# --- an old rhythm that the healthy window was too short to see ---


@seeds
def test_a_rhythm_that_is_the_slowdown_is_told(seed: int) -> None:
    plan = FleetPlan(workers=4, iterations=160, seed=seed)
    before = synthesize(FleetPlan(workers=4, iterations=20, seed=seed, draw=1), (), 1)
    histograms = Calls(("write_histograms (project/monitor.py:8)",), (0,), 700, every=40)
    assert [workers for _, workers in accused(judged(synthesize(plan, [histograms], 2), before, workers=4))] == [(0,)]


# --- most workers are slow ---


@seeds
def test_nine_of_sixteen_that_have_become_slow_are_told(seed: int) -> None:
    before = synthesize(devices(seed, workers=16, draw=1), (), 1)
    slow = SlowCompute(tuple(range(9)), 1.4, fact="none")
    verdict = judged(synthesize(devices(seed, workers=16), [slow], 2), before, workers=16)
    assert [cause for cause, _ in accused(verdict)] == ["compute-slow"]


# --- what has always been so ---


@seeds
def test_an_expectation_that_is_missed_for_no_known_reason_is_told_as_such(seed: int) -> None:
    now = synthesize(devices(seed, scale=1.4), (), 2)
    settings = Settings(expected_iteration_s=0.055)
    verdict = analyze("job", synthesize_window(now, "expected"), now, settings=settings)
    assert verdict.verdict == "undetermined"
    assert "more than expected (55 ms), but no function" in verdict.summary
