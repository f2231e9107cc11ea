"""Two troubles at once are told as two, each with its function, its workers and a gain of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from eroica.diagnosis.context import WindowContext
from eroica.diagnosis.lateness import agreement_with
from eroica.diagnosis.view import View
from eroica.localize import localize
from eroica.localize.fleet import Fleet
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import (
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
from support.code_troubles import Calls
from support.fleet import Draft
from support.scope_troubles import SlowStage
from support.troubles import BackwardHook, UnevenWork

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
    assert any("or would if they were not late by other work" in text for text in verdict.considered[0].met)
    assert "waits for it" not in verdict.summary


@dataclass(frozen=True)
class AtAnotherPlace:
    """All workers run `parse`; some call it from `late`, after backward, and the others from `early`, in forward.

    Attributes:
        late: Who calls it from `late`.
        ms: How long it takes on each worker.
    """

    late: tuple[int, ...]
    ms: tuple[float, ...]

    def apply(self, draft: Draft) -> None:
        """One function, called from two places."""
        is_late_W = np.isin(np.arange(draft.shape[0]), self.late)
        time_WI = np.asarray(self.ms)[:, None] * 1e3 * np.exp(draft.noise.normal(0, 0.1, draft.shape))
        for caller, phase, mine_W in (("early", "forward", ~is_late_W), ("late", "optimizer", is_late_W)):
            frames = (f"{caller} (project/steps.py:9)", "parse (project/steps.py:3)")
            draft.add(draft.loop_frame(*frames, phase=phase), time_WI * mine_W[:, None], 1, 0.9)


def without_past(troubles: Sequence[Trouble], seed: int, workers: int) -> Verdict:
    patterns = synthesize(FleetPlan(workers=workers, seed=seed), troubles, 2)
    return analyze("job", synthesize_window(patterns, "manual", ()), patterns)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("late", [(1,), (2, 3)])
def test_the_same_work_at_another_place_makes_nobody_late(late: tuple[int, ...], seed: int) -> None:
    workers = 2 * len(late)
    verdict = without_past([AtAnotherPlace(late, (40,) * workers)], seed, workers)
    assert [one for one in verdict.findings if one.role == "cause"] == [], verdict.summary


@pytest.mark.parametrize("seed", range(3))
def test_what_others_run_at_another_place_is_no_extra_duty_of_rank_0(seed: int) -> None:
    verdict = without_past([AtAnotherPlace((1, 2, 3), (60, 5, 5, 5))], seed, 4)
    assert verdict.cause is not None and (verdict.cause.workers, verdict.cause.function.name) == ((0,), "parse")
    assert "extra duty" not in verdict.summary


SERVE = ("serve (project/rewards.py:12)",)
ASK = ("ask (project/rewards.py:40)", "recv_into (socket.py:700)")


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_wait_in_a_socket_are_not_said_to_be_late_by_other_work(seed: int) -> None:
    def troubles(ms: float) -> list[Trouble]:
        return [Calls(ASK, (0, 1, 2), ms, use=0.02), Calls(SERVE, (3,), ms, use=1.0)]

    before = synthesize(FleetPlan(seed=seed), troubles(10), 1)
    patterns = synthesize(FleetPlan(seed=seed, draw=1), troubles(60), 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert verdict.cause is not None and verdict.cause.workers == (3,), verdict.summary
    assert any(text.endswith("they wait, and not in a collective.") for text in verdict.cause.evidence)
    assert "the other 3 workers wait for it" in verdict.summary
    assert not any("late" in text for text in verdict.considered[0].met)


@pytest.mark.parametrize("is_late", [False, True])
def test_series_are_read_only_where_others_may_hide_an_excess(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    troubles: list[Trouble] = [SlowLoader((0,), 40), BackwardHook((1,), 40)] if is_late else []
    patterns = synthesize(FleetPlan(workers=2), troubles, 2)
    context = WindowContext(job="job", window=synthesize_window(patterns, "manual", ()), expected_workers=2)
    view = View(localize(patterns, (), Settings()), context, Settings())
    rows = [at for at, key in enumerate(view.fleet.keys) if key.phase == "input"]
    read, series = [], Fleet.series
    monkeypatch.setattr(Fleet, "series", lambda self, *given: read.append(given) or series(self, *given))
    agreement_W = agreement_with(view, np.full(2, 40e3), rows, np.array([True, False]))
    assert bool(read) == is_late
    assert bool(agreement_W[0] >= 0.4) == is_late
