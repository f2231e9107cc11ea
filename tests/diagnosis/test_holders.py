"""Where nothing accounts for a slowdown, functions that are long enough to hold it are offered as hypotheses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from eroica.diagnosis import diagnose, holders
from eroica.diagnosis.context import WindowContext
from eroica.diagnosis.new_code import inclusive_times
from eroica.localize import localize
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, LargerBatches, Trouble, synthesize, synthesize_window

MAIN = "main (project/train.py:1)"
SCALE, SCALED = "scale_input (project/adapters.py:20)", "Adapter.forward (project/adapters.py:31)"
SAVE, REDUCE = "save (project/train.py:60)", "average (project/train.py:70)"
ENTERS = "all_reduce (torch/distributed/distributed_c10d.py:2000)"


def patterns_with(
    stacks: Sequence[tuple[tuple[str, ...], dict[int, float]]], troubles: Sequence[Trouble] = (), window_id: int = 2
) -> list[WorkerPattern]:
    """Patterns with stacks that take so many milliseconds of each iteration, by worker."""
    patterns = []
    for one in synthesize(FleetPlan(draw=window_id - 1), troubles, window_id):
        iterations = one.last_iteration - one.first_iteration
        rows = [
            FunctionPattern(
                key=FunctionKey(kind="python", name=stack[-1].split(" ", 1)[0], stack=(MAIN, *stack)),
                beta=0.0, total_s=ms[one.worker.global_rank] / 1e3 * iterations, count=40, max_s=0.1,
            )
            for stack, ms in stacks
        ]  # fmt: skip
        patterns.append(msgspec.structs.replace(one, functions=(*one.functions, *rows)))
    return patterns


def verdict(
    was_ms: float, now_ms: float, *stacks: tuple[tuple[str, ...], dict[int, float]], purpose: str = "slow"
) -> Verdict:
    """A slow window without a baseline window."""
    patterns = patterns_with(stacks)
    window = msgspec.structs.replace(
        synthesize_window(patterns, purpose, ()), baseline_iteration_s=was_ms / 1e3, current_iteration_s=now_ms / 1e3
    )
    context = WindowContext(job="job", window=window, expected_workers=4)
    settings = Settings(expected_iteration_s=now_ms / 2e3) if purpose == "expected" else Settings()
    return diagnose(localize(patterns, (), settings), context, settings)


def everywhere(ms: float) -> dict[int, float]:
    return dict.fromkeys(range(4), ms)


@pytest.fixture(scope="module")
def iteration_ms() -> float:
    return verdict(100, 100, ((SAVE,), everywhere(0.1))).iteration.current_ms


def test_the_most_specific_functions_that_may_hold_the_growth_are_offered(iteration_ms: float) -> None:
    grown = iteration_ms / 2
    told = verdict(
        iteration_ms - grown, iteration_ms,
        ((SCALED, SCALE), everywhere(0.55 * grown)),
        ((SCALED,), everywhere(0.1 * grown)),
        ((SAVE,), {0: 0.7 * grown, 1: 0.0, 2: 0.0, 3: 0.0}),
    )  # fmt: skip
    assert told.verdict == "undetermined"
    assert "Long enough to be it: scale_input (adapters.py:20)" in told.summary and "save (train.py:60)" in told.summary
    offered = [(one.cause, one.function, one.workers, one.scope) for one in told.considered]
    assert offered == [
        ("unknown", "scale_input (adapters.py:20)", (0, 1, 2, 3), "all"),
        ("unknown", "save (train.py:60)", (0,), "some"),
    ]
    assert "eroica diff" in told.considered[0].unknown[0]


def test_beside_a_healthy_window_it_is_the_growth_that_counts(iteration_ms: float) -> None:
    """Operators of forward and backward take longer everywhere: where most of it lies is offered all the same."""
    steady = ((SAVE,), everywhere(3 * iteration_ms))
    before = patterns_with((steady, ((SCALED, SCALE), everywhere(1.0))), (), 1)
    now = patterns_with((steady, ((SCALED, SCALE), everywhere(iteration_ms))), [LargerBatches(3.0)])
    told = analyze("job", synthesize_window(now, "slow", before), now, before)
    assert told.verdict == "undetermined" and "batches or sequences have grown" in told.summary
    assert [one.function for one in told.considered] == ["scale_input (adapters.py:20)"]
    assert "longer than in the healthy window" in told.considered[0].met[0]


def test_nothing_is_offered_where_the_users_functions_are_gone_since_the_healthy_window() -> None:
    before = patterns_with((((SAVE,), everywhere(1.0)),), (), 1)
    library = ("f (torch/nn/functional.py:1)",)
    now = [
        msgspec.structs.replace(
            one,
            functions=tuple(
                msgspec.structs.replace(row, key=msgspec.structs.replace(row.key, stack=library))
                if row.key.kind == "python"
                else row
                for row in one.functions
            ),
        )
        for one in patterns_with((), [LargerBatches(3.0)])
    ]
    told = analyze("job", synthesize_window(now, "slow", before), now, before)
    assert told.verdict == "undetermined" and told.considered == ()


def test_they_are_looked_for_once(iteration_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(holders, "inclusive_times", lambda *rest: looked.append(1) or inclusive_times(*rest))
    told = verdict(iteration_ms / 2, iteration_ms, ((SAVE,), everywhere(iteration_ms / 3)))
    assert "Long enough to be it: save (train.py:60)" in told.summary
    assert [one.function for one in told.considered] == ["save (train.py:60)"]
    assert looked == [1]


def test_what_is_too_short_or_waits_for_others_or_is_the_loop_is_not(iteration_ms: float) -> None:
    grown = iteration_ms / 2
    told = verdict(
        iteration_ms - grown, iteration_ms,
        ((SCALED, SCALE), everywhere(0.3 * grown)),
        ((REDUCE, ENTERS), everywhere(1.2 * grown)),
        (("step (project/train.py:90)",), everywhere(20 * grown)),
    )  # fmt: skip
    assert told.verdict == "undetermined"
    assert "Long enough" not in told.summary and told.considered == ()


def test_nothing_is_offered_where_iterations_are_only_longer_than_expected(iteration_ms: float) -> None:
    told = verdict(1.1 * iteration_ms, iteration_ms, ((SAVE,), everywhere(iteration_ms / 3)), purpose="expected")
    assert told.verdict == "undetermined"
    assert "Long enough" not in told.summary and told.considered == ()
