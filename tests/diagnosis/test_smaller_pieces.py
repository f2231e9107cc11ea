"""Operators that became more and shorter are told with the function that calls them; more of them as long are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest

from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, Trouble, synthesize, synthesize_window
from support.fleet import Draft

STACK = ("main (project/train.py:1)", "adapt (project/train.py:40)", "wrapper (torch/_functorch/apis.py:458)")
EVERYBODY = (0, 1, 2, 3)
seeds = pytest.mark.parametrize("seed", range(3))


@dataclass(frozen=True)
class CutUp:
    """Operators of some phases run so many times as often on some workers, each so many times as long."""

    often: float
    each: float
    workers: tuple[int, ...] = EVERYBODY
    phases: tuple[str, ...] = ("forward", "backward")

    def apply(self, draft: Draft) -> None:
        members = list(self.workers)
        for key in draft.time_us:
            if key.kind == "compute" and key.phase in self.phases:
                draft.time_us[key][members] *= self.often * self.each
                draft.count[key][members] *= self.often


def called(patterns: Sequence[WorkerPattern], ms: float) -> list[WorkerPattern]:
    """The patterns with stacks that were sampled during the operators."""
    key = FunctionKey(kind="python", name="wrapper", stack=STACK)
    changed = []
    for one in patterns:
        seconds = ms / 1e3 * (one.last_iteration - one.first_iteration)
        row = FunctionPattern(key=key, beta=0.0, resource="cpu", resource_samples=200, total_s=seconds, count=40)
        changed.append(msgspec.structs.replace(one, functions=(*one.functions, row)))
    return changed


def verdict_on(trouble: Trouble, seed: int, iterations: int = 20, purpose: str = "slow") -> Verdict:
    then = synthesize(FleetPlan(seed=seed + 10_000), (), 1)
    now = synthesize(FleetPlan(seed=seed, iterations=iterations), [trouble], 2)
    seconds = [one[0].duration_s / (one[0].last_iteration - one[0].first_iteration) for one in (now, then)]
    grown_ms = 1e3 * (seconds[0] - seconds[1])
    now, then = called(now, 10.0 + max(grown_ms, 0.0)), called(then, 10.0)
    return analyze("job", synthesize_window(now, purpose, then), now, then)


@seeds
@pytest.mark.parametrize("iterations", [4, 20])
def test_the_same_work_in_smaller_pieces_names_who_cuts_it(seed: int, iterations: int) -> None:
    verdict = verdict_on(CutUp(often=8.0, each=0.4), seed, iterations)
    found = verdict.findings[0]
    assert (found.cause, found.scope) == ("python-on-critical-path", "all"), verdict.summary
    assert found.function is not None and found.function.name == "adapt"
    assert "8.0 times as often as when the job was healthy, each 0.4 times as long" in verdict.summary
    assert found.gain is not None and found.gain == pytest.approx(1 - 1 / slower(verdict), abs=0.12)


def slower(verdict: Verdict) -> float:
    assert verdict.iteration.baseline_ms and verdict.iteration.current_ms
    return verdict.iteration.current_ms / verdict.iteration.baseline_ms


@seeds
@pytest.mark.parametrize(
    "trouble",
    [
        CutUp(often=1.8, each=1.0),  # more batches
        CutUp(often=1.0, each=1.8),  # larger ones
        CutUp(often=4.0, each=0.5, workers=(1,)),  # one worker's own matter
        CutUp(often=6.0, each=0.5, phases=("forward",)),  # longer answers are generated
    ],
)
def test_more_or_longer_operators_are_not_smaller_pieces(trouble: Trouble, seed: int) -> None:
    verdict = verdict_on(trouble, seed)
    assert "smaller pieces" not in " ".join((verdict.summary, *(str(one.evidence) for one in verdict.findings)))


@seeds
@pytest.mark.parametrize(("often", "each"), [(1.8, 1.0), (3.0, 0.9)])
def test_more_batches_are_told_as_what_they_are_and_accuse_nobody(often: float, each: float, seed: int) -> None:
    verdict = verdict_on(CutUp(often, each), seed)
    assert verdict.verdict == "undetermined" and verdict.cause is None, verdict.summary
    assert f"operators run {often:.1f} times as often as in the healthy window" in verdict.summary
    assert "mainly under adapt (train.py:40)" in verdict.summary


@seeds
def test_a_window_by_hand_asks_nothing_unless_it_is_far_slower_than_the_healthy_one(seed: int) -> None:
    assert "smaller pieces" not in verdict_on(CutUp(often=8.0, each=0.15), seed, purpose="manual").summary
    found = verdict_on(CutUp(often=8.0, each=0.4), seed, purpose="manual").findings[0]
    assert found.function is not None and (found.function.name, found.scope) == ("adapt", "all")
