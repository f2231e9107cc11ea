"""Two troubles at once are told as two, each with its function, its workers and a gain of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from eroica.pipeline import analyze
from eroica.testing import (
    BusyHost,
    FleetPlan,
    GarbagePauses,
    SlowCompute,
    SlowHostLink,
    SlowLoader,
    SlowPython,
    Trouble,
    synthesize,
    synthesize_window,
)
from eroica.testing.code_troubles import Calls
from eroica.testing.scope_troubles import SlowStage
from eroica.testing.troubles import BackwardHook, UnevenWork

SAVE = ("save_state (project/keep.py:12)", "save (torch/serialization.py:900)")
MIX, GATHER = ("mix (project/augment.py:30)",), ("gather (project/queue.py:5)",)
ALL = (0, 1, 2, 3)
#: What the slug may be, the workers, the function; () and "" where the scope or the operators say it.
Expected = tuple[tuple[str, ...], tuple[int, ...], str]
PYTHON, LINK = ("python-on-critical-path",), ("slow-collective-everywhere", "slow-link")


class Mixed(NamedTuple):
    """Troubles at once, and what is to be told of each."""

    troubles: Sequence[Trouble]
    expected: Sequence[Expected]
    plan: tuple[tuple[str, int], ...] = ()


CASES = {
    "a loader, and slow processors elsewhere": Mixed(
        (SlowLoader((2,), 40), SlowCompute((1,), 1.6)),
        ((("slow-data-loading", "slow-storage-read"), (2,), "_read_block"), (("compute-slow",), (1,), "")),
    ),
    "a link, and collections": Mixed(
        (SlowHostLink((1,), 15), GarbagePauses(40, 0.3)),
        ((("garbage-collection",), (), ""), (LINK, (), "")),
        (("workers", 8), ("per_host", 4)),
    ),
    "a checkpoint, and others on a host": Mixed(
        (Calls(SAVE, (0,), 40), BusyHost((2,), 1.5)),
        ((("blocking-checkpoint",), (0,), "save_state"), (("cpu-contention",), (2,), "")),
    ),
    "two workers, a function each": Mixed(
        (Calls(MIX, (1,), 30), Calls(GATHER, (3,), 30)), ((PYTHON, (1,), "mix"), (PYTHON, (3,), "gather"))
    ),
    "two workers, one waits for the other": Mixed(
        (Calls(MIX, (1,), 40), Calls(GATHER, (3,), 20)), ((PYTHON, (1,), "mix"), (PYTHON, (3,), "gather"))
    ),
    "two workers, late together by different work": Mixed(
        (SlowLoader((1,), 40), BackwardHook((0,), 40)),
        ((("slow-data-loading", "slow-storage-read"), (1,), "_read_block"), (PYTHON, (0,), "scale_grad")),
        (("workers", 2),),
    ),
    "two workers, the lesser lateness hidden by the greater": Mixed(
        (SlowLoader((1,), 30), BackwardHook((0,), 50)),
        ((("slow-data-loading", "slow-storage-read"), (1,), "_read_block"), (PYTHON, (0,), "scale_grad")),
        (("workers", 2),),
    ),
    "two workers, a loader and slow processors": Mixed(
        (SlowLoader((1,), 30), SlowCompute((0,), 1.6)),
        ((("slow-data-loading", "slow-storage-read"), (1,), "_read_block"), (("compute-slow",), (0,), "")),
        (("workers", 2),),
    ),
    "two workers, a loader and more work": Mixed(
        (SlowLoader((1,), 30), UnevenWork((0,), 0.8)),
        ((("slow-data-loading", "slow-storage-read"), (1,), "_read_block"), (("load-imbalance",), (0,), "")),
        (("workers", 2),),
    ),
    "two halves of the workers": Mixed(
        (SlowLoader((0, 1), 40), BackwardHook((2, 3), 40)),
        ((("slow-data-loading", "slow-storage-read"), (0, 1), "_read_block"), (PYTHON, (2, 3), "scale_grad")),
    ),
    "all are slower, and one more": Mixed(
        (SlowPython(20), SlowCompute((1,), 1.4)),
        ((PYTHON, ALL, "_score_tokens"), (("compute-slow",), (1,), "")),
    ),
    "a function of all, and one of one": Mixed(
        (SlowPython(20), Calls(GATHER, (3,), 25)), ((PYTHON, ALL, "_score_tokens"), (PYTHON, (3,), "gather"))
    ),
    "a stage, and a rank of another": Mixed(
        (SlowStage(1, 1.6), Calls(MIX, (0,), 45)),
        ((("compute-slow", "stage-imbalance"), (1, 3, 5, 7), ""), (PYTHON, (0,), "mix")),
        (("workers", 8), ("stages", 2)),
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_both_are_told(name: str, seed: int) -> None:
    case = CASES[name]
    plan = {"workers": 4, **dict(case.plan)}
    before = synthesize(FleetPlan(seed=seed, **plan), (), 1)
    patterns = synthesize(FleetPlan(seed=seed, draw=1, **plan), case.troubles, 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    found = [one for one in verdict.findings if one.role == "cause"]
    for slugs, workers, function in case.expected:
        own = [
            one
            for one in found
            if one.cause in slugs
            and (not workers or one.workers == workers)
            and (not function or function in one.function.name)
        ]
        assert own, (name, slugs, workers, [(one.cause, one.workers, one.function.name) for one in found])
        assert own[0].gain is not None and own[0].gain >= 0.05
    assert len(found) == len(case.expected), [(one.cause, one.workers, one.function.name) for one in found]


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_is_late_by_other_work_is_not_said_to_wait(seed: int) -> None:
    patterns = synthesize(FleetPlan(workers=2, seed=seed), (SlowLoader((1,), 40), BackwardHook((0,), 40)), 2)
    verdict = analyze("job", synthesize_window(patterns, "manual", ()), patterns)
    assert "the other worker is late by other work" in verdict.summary
    assert "waits for it" not in verdict.summary
