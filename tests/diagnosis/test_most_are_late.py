"""Workers that wait tell what is usual, so that the late are named also where they are most of the job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eroica.model.verdict import Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import FleetPlan, SlowCompute, SlowLoader, Trouble, synthesize, synthesize_window
from support.fleet import causes
from support.troubles import BackwardHook

Made = Callable[[tuple[int, ...]], Trouble]
seeds = pytest.mark.parametrize("seed", range(3))
MAKERS: dict[str, Made] = {
    "loader": lambda workers: SlowLoader(workers, 40),
    "hook": lambda workers: BackwardHook(workers, 40),
    "compute": lambda workers: SlowCompute(workers, 1.6, "throttled"),
}


def judge(*troubles: Trouble, workers: int, baseline: bool = True, seed: int = 0) -> Verdict:
    before = synthesize(FleetPlan(workers=workers, seed=seed), (), 1) if baseline else []
    patterns = synthesize(FleetPlan(workers=workers, seed=seed, draw=1), troubles, 2)
    purpose: WindowPurpose = "slow" if baseline else "manual"
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before)


def lost(verdict: Verdict, workers: int, seed: int) -> float:
    """Share of the iteration that is gone without the trouble."""
    healthy, now = judge(workers=workers, seed=seed).iteration.current_ms, verdict.iteration.current_ms
    assert healthy is not None and now is not None
    return 1 - healthy / now


@pytest.mark.parametrize(
    ("kind", "baseline"),
    [("loader", True), ("loader", False), ("hook", True), ("hook", False), ("compute", True)],  # or few may be fast
)
@pytest.mark.parametrize(
    ("late", "workers", "seed"), [(4, 7, 0), (4, 7, 1), (5, 9, 2), (6, 11, 0), (7, 12, 0), (7, 12, 1), (17, 32, 0)]
)
def test_between_half_and_most_are_named_with_all_that_they_cost(
    late: int, workers: int, kind: str, baseline: bool, seed: int
) -> None:
    accused = tuple(range(late))
    verdict = judge(MAKERS[kind](accused), workers=workers, baseline=baseline, seed=seed)
    assert len(causes(verdict)) == 1, verdict.summary
    found = causes(verdict)[0]
    assert (found.workers, found.scope) == (accused, "some"), verdict.summary
    assert found.gain == pytest.approx(lost(verdict, workers, seed), abs=0.1)


@pytest.mark.parametrize("kind", sorted(MAKERS))
@pytest.mark.parametrize(("late", "workers", "seed"), [(3, 4, 0), (3, 4, 1), (3, 4, 2), (9, 12, 0), (11, 12, 1)])
def test_the_scope_is_some_where_anybody_is_in_time_and_waits(late: int, workers: int, kind: str, seed: int) -> None:
    accused = tuple(range(late))
    verdict = judge(MAKERS[kind](accused), workers=workers, seed=seed)
    assert len(causes(verdict)) == 1, verdict.summary
    found = causes(verdict)[0]
    assert (found.workers, found.scope) == (accused, "some"), verdict.summary
    waiting = {rank for one in verdict.findings if one.role == "symptom" for rank in one.workers}
    assert waiting == set(range(late, workers))
    assert found.gain == pytest.approx(lost(verdict, workers, seed), abs=0.1)


@seeds
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_the_scope_is_all_where_all_are_late(kind: str, seed: int) -> None:
    verdict = judge(MAKERS[kind]((0, 1, 2, 3)), workers=4, seed=seed)
    assert [(one.workers, one.scope) for one in causes(verdict)] == [((0, 1, 2, 3), "all")], verdict.summary
