"""Work in operators is told as the function that calls them, but not where all operators take longer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Finding, Verdict
from eroica.pipeline import analyze
from support import FleetPlan, GarbagePauses, Trouble, synthesize, synthesize_window
from support.fleet import Draft

FRAMES = ("Module._call_impl (torch/nn/modules/module.py:1782)", "attend (project/attention.py:43)")
SORT = FunctionKey(kind="compute", name="aten::sort", phase="forward", thread="training")
SORT_BACKWARD = FunctionKey(kind="compute", name="SortBackward0", phase="backward", thread="training")
EVERYBODY = (0, 1, 2, 3)
seeds = pytest.mark.parametrize("seed", range(3))


class Sorting:
    """Operators of one function: so long in forward, so long their gradients in backward."""

    def __init__(self, workers: Sequence[int], forward_ms: float, backward_ms: float = 0.0) -> None:
        self.workers, self.forward_ms, self.backward_ms = list(workers), forward_ms, backward_ms

    def apply(self, draft: Draft) -> None:
        on_WI = np.zeros(draft.shape)
        on_WI[self.workers] = 1e3
        draft.add(SORT, self.forward_ms * on_WI, 4.0, 0.95)
        if self.backward_ms:
            draft.add(SORT_BACKWARD, self.backward_ms * on_WI, 4.0, 0.95)


class Copies(Sorting):
    """Many copies instead."""

    def apply(self, draft: Draft) -> None:
        on_WI = np.zeros(draft.shape)
        on_WI[self.workers] = 1e3
        for phase, ms in (("forward", self.forward_ms), ("backward", self.backward_ms)):
            if ms:
                draft.add(FunctionKey(kind="compute", name="aten::copy_", phase=phase), ms * on_WI, 300.0, 0.95)


def called_by_attend(patterns: Sequence[WorkerPattern], workers: Sequence[int], ms: float) -> list[WorkerPattern]:
    """The patterns with stacks that were sampled during the operators: the function takes hardly any time itself."""
    key = FunctionKey(kind="python", name="attend", stack=(*LOOP, *FRAMES), phase="forward", thread="training")
    changed = []
    for one in patterns:
        seconds = ms / 1e3 * (one.last_iteration - one.first_iteration)
        more = FunctionPattern(
            key=key, beta=0.0, mu=0.95, resource="cpu", resource_samples=200, total_s=seconds, count=40, max_s=0.1
        )
        has = one.worker.global_rank in workers
        changed.append(msgspec.structs.replace(one, functions=(*one.functions, more)) if has else one)
    return changed


LOOP = ("<module> (project/train.py:1)", "main (project/train.py:40)")


def judge(trouble: Sorting, seen_ms: float, seed: int, purpose: str = "slow") -> Verdict:
    before = synthesize(FleetPlan(workers=4, seed=seed), (), 1)
    now = synthesize(FleetPlan(workers=4, seed=seed, draw=1), [trouble], 2)
    patterns = called_by_attend(now, trouble.workers, seen_ms)
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before)  # type: ignore[arg-type]


def causes(verdict: Verdict) -> list[Finding]:
    return [one for one in verdict.findings if one.role == "cause"]


@seeds
def test_additional_work_of_one_worker_is_the_function_that_calls_it(seed: int) -> None:
    verdict = judge(Sorting((1,), 60), 60, seed)
    (found,) = causes(verdict)
    assert (found.cause, found.workers, found.function.name) == ("python-on-critical-path", (1,), "attend")
    assert any("aten::sort first" in sentence for sentence in found.evidence), found.evidence
    usual, now = judge(Sorting((), 0), 0, seed).iteration.current_ms, verdict.iteration.current_ms
    assert usual is not None and now is not None
    assert found.gain == pytest.approx(1 - usual / now, abs=0.06)


@seeds
@pytest.mark.parametrize(("seen_ms", "is_told"), [(54, True), (8, False)])
def test_collections_are_told_with_the_function_that_they_interrupt(seen_ms: float, is_told: bool, seed: int) -> None:
    before = synthesize(FleetPlan(workers=4, seed=seed), (), 1)
    now = synthesize(FleetPlan(workers=4, seed=seed, draw=1), [GarbagePauses(60, chance=0.9, workers=(3,))], 2)
    patterns = called_by_attend(now, (3,), seen_ms)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    found = causes(verdict)[0]
    assert (found.cause, found.workers) == ("garbage-collection", (3,)), verdict.summary
    assert ("most of it while attend (attention.py:43) runs" in verdict.summary) == is_told
    assert any("attend (attention.py:43) runs, and so allocates" in one for one in found.evidence) == is_told


@seeds
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_without_peers_is_compared_with_its_own_past(seed: int, stage: int) -> None:
    plan = FleetPlan(workers=2, stages=2, seed=seed)
    before = synthesize(plan, (), 1)
    now = synthesize(dataclasses.replace(plan, draw=1), [Sorting((stage,), 60)], 2)
    patterns = called_by_attend(now, (stage,), 60)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)  # type: ignore[arg-type]
    (found,) = causes(verdict)
    assert (found.cause, found.workers, found.function.name) == ("python-on-critical-path", (stage,), "attend")


@seeds
def test_where_samples_show_no_function_it_stays_uneven_work(seed: int) -> None:
    assert [one.cause for one in causes(judge(Sorting((1,), 60), 5, seed))] == ["load-imbalance"]


@seeds
@pytest.mark.parametrize("backward_ms", [0.0, 40.0])
def test_what_all_do_more_in_one_function_is_named_with_its_gradients(seed: int, backward_ms: float) -> None:
    verdict = judge(Sorting(EVERYBODY, 40, backward_ms), 40, seed)
    (found,) = causes(verdict)
    assert (found.cause, found.scope, found.function.name) == ("python-on-critical-path", "all", "attend")
    usual, now = judge(Sorting((), 0), 0, seed).iteration.current_ms, verdict.iteration.current_ms
    assert usual is not None and now is not None
    assert found.gain == pytest.approx(1 - usual / now, abs=0.06)
    assert any("Operators of backward" in sentence for sentence in found.evidence) == bool(backward_ms)


class Scaled:
    """Everything of some parts of the iteration takes so many times as long, or is run so many times as often."""

    def __init__(self, phases: Sequence[str], longer: float = 1.0, oftener: float = 1.0) -> None:
        self.phases, self.longer, self.oftener = phases, longer, oftener

    def apply(self, draft: Draft) -> None:
        for key in draft.time_us:
            if key.phase in self.phases:
                draft.time_us[key] = draft.time_us[key] * self.longer * self.oftener
                draft.count[key] = draft.count[key] * self.oftener


def in_attend(seed: int, draw: int, troubles: Sequence[Trouble], ms: float) -> list[WorkerPattern]:
    """Stacks of `attend` were sampled during operators on everybody."""
    made = synthesize(FleetPlan(workers=4, seed=seed, draw=draw), troubles, draw + 1)
    return called_by_attend(made, EVERYBODY, ms)


DATA = ("forward", "backward")


@seeds
@pytest.mark.parametrize("purpose", ["slow", "manual"])
@pytest.mark.parametrize(
    ("then", "now", "times"),
    [
        pytest.param([], [Scaled(DATA, longer=2.5)], 2.5, id="larger batches"),
        pytest.param([], [Scaled(DATA, oftener=4.0)], 4.0, id="more micro-batches"),
        pytest.param([], [Scaled((*DATA, "optimizer", "other"), longer=4.0)], 4.0, id="slow processors"),
        pytest.param(
            [Scaled(("optimizer",), longer=15.0)],
            [Scaled(("optimizer",), longer=15.0), Scaled(DATA, longer=4.0)],
            4.0,
            id="larger batches beside a long optimizer",
        ),
    ],
)
def test_longer_operators_all_over_are_no_functions_doing(
    seed: int, purpose: str, then: list[Trouble], now: list[Trouble], times: float
) -> None:
    before, patterns = in_attend(seed, 0, then, 8), in_attend(seed, 1, now, 8 * times)
    verdict = analyze("job", synthesize_window(patterns, purpose, before), patterns, before)  # type: ignore[arg-type]
    assert not [one for one in causes(verdict) if one.function.name == "attend"], verdict.summary


@seeds
def test_a_function_that_was_there_before_in_full_is_not_named(seed: int) -> None:
    """Another one's operators have come on top."""
    before = in_attend(seed, 0, [Sorting(EVERYBODY, 40)], 40)
    patterns = in_attend(seed, 1, [Sorting(EVERYBODY, 90)], 40)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert not [one for one in causes(verdict) if one.function.name == "attend"], verdict.summary


@seeds
def test_a_storm_of_copies_keeps_its_name(seed: int) -> None:
    for workers in ((1,), EVERYBODY):
        verdict = judge(Copies(workers, 60), 60, seed)
        (found,) = causes(verdict)
        assert (found.cause, found.function.name) == ("memory-operation-storm", "aten::copy_")
        assert "most of all in aten::copy_, which attend (attention.py:43) calls" in verdict.summary
        assert found.function.stack == (*LOOP, *FRAMES)
        assert any(text.startswith("Operators that attend (attention.py:43) calls take") for text in found.evidence)


@seeds
def test_copies_of_backward_are_not_said_to_be_called_by_a_function_of_forward(seed: int) -> None:
    verdict = judge(Copies((1,), 0, 60), 60, seed)
    (found,) = causes(verdict)
    assert (found.cause, found.function.stack) == ("memory-operation-storm", ()) and "attend" not in verdict.summary


@seeds
def test_a_few_copies_among_much_other_work_do_not_hide_its_caller(seed: int) -> None:
    class Updates(Sorting):
        def apply(self, draft: Draft) -> None:
            super().apply(draft)
            on_WI = np.zeros(draft.shape)
            on_WI[self.workers] = 20e3
            draft.add(FunctionKey(kind="compute", name="aten::copy_", phase="forward"), on_WI, 1000.0, 0.95)

    verdict = judge(Updates((1,), 60), 80, seed)
    (found,) = causes(verdict)
    assert (found.cause, found.workers, found.function.name) == ("python-on-critical-path", (1,), "attend")
    assert "busy" not in verdict.summary and "waits rather" not in verdict.summary  # the operators are what computes


@seeds
def test_where_one_worker_does_far_more_of_it_that_worker_is_named(seed: int) -> None:
    class Uneven(Sorting):
        def apply(self, draft: Draft) -> None:
            super().apply(draft)
            Sorting((1,), 60).apply(draft)

    before = synthesize(FleetPlan(workers=4, seed=seed), (), 1)
    now = synthesize(FleetPlan(workers=4, seed=seed, draw=1), [Uneven(EVERYBODY, 20)], 2)
    patterns = called_by_attend(called_by_attend(now, EVERYBODY, 20), (1,), 60)
    found = analyze("job", synthesize_window(patterns, "slow", before), patterns, before).cause
    assert found is not None and found.workers == (1,)


@seeds
def test_work_that_peers_have_less_of_stays_uneven_and_says_where(seed: int) -> None:
    class AnotherSort(Sorting):
        def apply(self, draft: Draft) -> None:
            on_WI = np.zeros(draft.shape)
            on_WI[self.workers] = self.forward_ms * 1e3
            draft.add(FunctionKey(kind="compute", name="aten::topk", phase="forward"), on_WI, 300.0, 0.95)

    before = in_attend(seed, 0, [Sorting(EVERYBODY, 20)], 20)
    more = synthesize(FleetPlan(workers=4, seed=seed, draw=1), [Sorting(EVERYBODY, 20), AnotherSort((1,), 60)], 2)
    patterns = called_by_attend(called_by_attend(more, (0, 2, 3), 20), (1,), 80)
    found = analyze("job", synthesize_window(patterns, "slow", before), patterns, before).cause
    assert found is not None and (found.cause, found.workers) == ("load-imbalance", (1,))
    assert any(text.startswith("Most of it lies in attend") for text in found.evidence), found.evidence


def test_a_worker_that_the_healthy_window_did_not_have_is_compared_with_nothing() -> None:
    before = in_attend(0, 0, [], 1)[:3]
    patterns = in_attend(0, 1, [Sorting(EVERYBODY, 40)], 40)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert not [one for one in causes(verdict) if one.function.name == "attend"], verdict.summary
