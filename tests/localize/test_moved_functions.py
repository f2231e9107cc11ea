"""Functions that others call than in the baseline window are compared with what they took then."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from eroica.diagnosis.view import View, WindowContext
from eroica.localize import localize
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, synthesize, synthesize_window
from support.fleet import Draft

WAIT, PARSE = "device_wait (project/train.py:92)", "parse (project/train.py:12)"
OLD, NEW = "all_at_once (project/train.py:140)", "one_by_one (project/train.py:166)"
OTHER = "last_stage (project/train.py:201)"


def under(pattern: WorkerPattern, caller: str, leaf: str, ms: float) -> WorkerPattern:
    """Python of a function that is called so."""
    iterations = pattern.last_iteration - pattern.first_iteration
    key = FunctionKey(kind="python", name=leaf.split(" ", 1)[0], stack=("main (project/train.py:1)", caller, leaf))
    row = FunctionPattern(
        key=key, beta=ms / 1e3 * iterations / pattern.duration_s, critical_s=ms / 1e3 * iterations, count=iterations
    )
    row = msgspec.structs.replace(row, total_s=row.critical_s, max_s=ms / 1e3)
    return msgspec.structs.replace(pattern, functions=(*pattern.functions, row))


def window(draw: int, *rows: tuple[str, str, float]) -> list[WorkerPattern]:
    patterns = synthesize(FleetPlan(draw=draw), (), draw + 1)
    for caller, leaf, ms in rows:
        patterns = [under(one, caller, leaf, ms) for one in patterns]
    return list(patterns)


def before_of(leaf: str, now: list[WorkerPattern], then: list[WorkerPattern]) -> dict[str, list[float]]:
    suspects = localize(now, then, Settings())
    return {
        key.stack[-2]: suspects.before_us[at].tolist()
        for at, key in enumerate(suspects.fleet.keys)
        if key.stack and key.stack[-1] == leaf
    }


def test_the_past_is_divided_by_what_each_caller_takes_now() -> None:
    now = window(1, (NEW, WAIT, 30), ("other (project/train.py:7)", WAIT, 10))
    found = before_of(WAIT, now, window(0, (OLD, WAIT, 20)))
    assert found[NEW] == pytest.approx([15_000] * 4, rel=0.01)
    assert found["other (project/train.py:7)"] == pytest.approx([5_000] * 4, rel=0.01)


class Calls:
    """Workers spend so many milliseconds of each iteration in a function that is called so."""

    def __init__(self, caller: str, leaf: str, ms: float, workers: Sequence[int] = (0, 1, 2, 3)) -> None:
        stack = ("main (project/train.py:1)", caller, leaf)
        self.key = FunctionKey(kind="python", name=leaf.split(" ", 1)[0], stack=stack)
        self.ms, self.workers = ms, list(workers)

    def apply(self, draft: Draft) -> None:
        time_us = np.zeros(draft.shape)
        time_us[self.workers] = self.ms * 1e3
        draft.add(self.key, time_us * draft.noise.normal(1.0, 0.05, draft.shape), 1.0, 1.0)


def verdict_on(now: list[Calls], then: list[Calls]) -> Verdict:
    past = synthesize(FleetPlan(), then, 1)
    patterns = synthesize(FleetPlan(draw=1), now, 2)
    return analyze("job", synthesize_window(patterns, "slow", past), patterns, past)  # type: ignore[arg-type]


def test_each_worker_has_its_own_past_iteration_by_iteration() -> None:
    """Stages call the same function from different places."""
    then = synthesize(FleetPlan(), [Calls(OLD, WAIT, 48)], 1)
    now = synthesize(FleetPlan(draw=1), [Calls(NEW, WAIT, 50, (0, 1)), Calls(OTHER, WAIT, 50, (2, 3))], 2)
    context = WindowContext(job="job", window=synthesize_window(now, "slow", then), expected_workers=4)
    view = View(localize(now, then, Settings()), context, Settings())
    rows = {key.stack[-2]: at for at, key in enumerate(view.fleet.keys) if key.stack and key.stack[-1] == WAIT}
    found = view.before([rows[NEW]]).mean(axis=1)
    assert found == pytest.approx([48_000, 48_000, 0, 0], rel=0.05)
    assert view.before(list(rows.values())).mean(axis=1) == pytest.approx([48_000] * 4, rel=0.05)


def test_a_function_that_takes_what_it_took_is_not_blamed_for_its_new_caller() -> None:
    verdict = verdict_on([Calls(NEW, WAIT, 50), Calls(NEW, PARSE, 60)], [Calls(OLD, WAIT, 48)])
    (found,) = [one for one in verdict.findings if one.role == "cause"]
    assert found.function is not None and found.function.name == "parse"
    assert found.evidence and "60 ms" in found.evidence[0], found.evidence
