"""Code that runs now and did not in the healthy window."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from eroica.diagnosis.context import WindowContext
from eroica.diagnosis.new_code import new_function
from eroica.diagnosis.view import View
from eroica.localize import localize
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.settings import Settings
from support import FleetPlan, synthesize, synthesize_window

MAIN, LIBRARY = "main (project/train.py:1)", "Module._call_impl (torch/nn/modules/module.py:1782)"
OLD, NEW, BELOW = (
    "all_at_once (project/train.py:140)",
    "one_by_one (project/train.py:166)",
    "take (project/train.py:99)",
)


def running(draw: int, stack: Sequence[str], ms: float, workers: Sequence[int] = (0, 1, 2, 3)) -> list[WorkerPattern]:
    """Samples of this stack, most of them while something else is critical."""
    key = FunctionKey(kind="python", name=stack[-1].split(" ", 1)[0], stack=(MAIN, *stack))
    changed = []
    for one in synthesize(FleetPlan(draw=draw), (), draw + 1):
        seconds = ms / 1e3 * (one.last_iteration - one.first_iteration)
        row = FunctionPattern(key=key, beta=0.0, total_s=seconds, count=40, max_s=0.1)
        has = one.worker.global_rank in workers
        changed.append(msgspec.structs.replace(one, functions=(*one.functions, row)) if has else one)
    return changed


def said(now: list[WorkerPattern], then: list[WorkerPattern]) -> str:
    window = synthesize_window(now, "slow", then)
    context = WindowContext(job="job", window=window, expected_workers=4)
    view = View(localize(now, then, Settings()), context, Settings())
    return new_function(view, 0.3 * view.iteration_us)


@pytest.mark.parametrize("then", [(OLD, BELOW), (BELOW,)], ids=["in another's place", "in nobody's"])
def test_what_all_run_now_and_hardly_ran_before(then: Sequence[str]) -> None:
    assert said(running(1, (NEW, BELOW), 80), running(0, then, 80)) == "one_by_one (train.py:166)"


def test_one_sample_of_a_healthy_window_does_not_hide_it() -> None:
    then = [
        msgspec.structs.replace(one, functions=(*one.functions, *other.functions[-1:]))
        for one, other in zip(running(0, (OLD,), 80), running(0, (NEW,), 1), strict=True)
    ]
    assert said(running(1, (NEW,), 80), then) == "one_by_one (train.py:166)"


@pytest.mark.parametrize(
    ("stack", "ms", "workers"),
    [((NEW,), 5, range(4)), ((NEW,), 80, (0, 1)), ((LIBRARY,), 80, range(4)), ((OLD,), 80, range(4))],
    ids=["little", "some only", "a library", "nothing new"],
)
def test_nothing_else_is_said(stack: Sequence[str], ms: float, workers: Sequence[int]) -> None:
    assert said(running(1, stack, ms, workers), running(0, (OLD,), 80)) == ""


def test_without_a_healthy_window_nothing_is_said() -> None:
    assert said(running(1, (NEW,), 80), []) == ""
