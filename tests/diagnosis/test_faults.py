"""Each trouble of a synthetic fleet, at several sizes and seeds: cause, workers and function must be right."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import (
    BackwardHook,
    BusyHost,
    FleetPlan,
    SlowCompute,
    SlowLoader,
    SlowPython,
    Trouble,
    synthesize,
    synthesize_window,
)

EVERYBODY = (0, 1, 2, 3)


def verdict_on(*troubles: Trouble, seed: int, purpose: str = "slow", baseline: bool = True, **plan: object) -> Verdict:
    healthy = synthesize(FleetPlan(seed=seed + 10_000, **plan), (), 1)
    patterns = synthesize(FleetPlan(seed=seed, **plan), troubles, 2)
    window = synthesize_window(patterns, purpose, healthy)
    return analyze("job", window, patterns, healthy if baseline else ())


def check(verdict: Verdict, cause: str, workers: tuple[int, ...], function: str | None = None) -> None:
    found = verdict.cause
    assert verdict.verdict == "slow", verdict.summary
    assert found is not None
    assert (found.cause, found.workers) == (cause, workers), verdict.summary
    assert function is None or found.function.name == function
    assert [one.cause for one in verdict.findings if one.role == "cause"] == [cause]


seeds = pytest.mark.parametrize("seed", range(4))


@seeds
@pytest.mark.parametrize("ms", [15, 40, 200])
@pytest.mark.parametrize("loader_workers", [0, 2])
def test_a_slow_loader_is_named_by_the_users_own_frame(seed: int, ms: float, loader_workers: int) -> None:
    verdict = verdict_on(SlowLoader((2,), ms), seed=seed, loader_workers=loader_workers)
    check(verdict, "slow-data-loading", (2,), "_read_block")
    assert verdict.cause is not None
    stack = verdict.cause.function.stack
    assert stack[-1].startswith("_read_block (project/dataset.py")
    assert any("_worker_loop" in frame for frame in stack) == bool(loader_workers)
    symptom = verdict.findings[1]
    assert (symptom.role, symptom.function.name) == ("symptom", "gloo:all_reduce")
    assert symptom.workers == (0, 1, 3)
    assert verdict.cause.explains == (symptom.order,)


@seeds
@pytest.mark.parametrize("ms", [15, 40, 200])
def test_a_python_hook_in_backward_is_named_on_its_worker(seed: int, ms: float) -> None:
    check(verdict_on(BackwardHook((1,), ms), seed=seed), "python-on-critical-path", (1,), "scale_grad")


@seeds
@pytest.mark.parametrize("ms", [15, 40, 200])
def test_more_python_on_all_workers_is_found_against_the_baseline(seed: int, ms: float) -> None:
    verdict = verdict_on(SlowPython(ms), seed=seed)
    check(verdict, "python-on-critical-path", EVERYBODY, "_score_tokens")
    assert verdict.cause is not None
    assert verdict.cause.scope == "all"


@seeds
def test_more_python_on_all_workers_is_found_from_the_slowdown_alone(seed: int) -> None:
    verdict = verdict_on(SlowPython(40), seed=seed, baseline=False)
    check(verdict, "python-on-critical-path", EVERYBODY, "_score_tokens")
    with_baseline = verdict_on(SlowPython(40), seed=seed)
    assert verdict.cause is not None
    assert with_baseline.cause is not None
    assert verdict.cause.confidence < with_baseline.cause.confidence


@seeds
def test_a_function_explains_a_job_that_got_far_slower_yet_since_the_trigger_saw_it(seed: int) -> None:
    """The mean that the trigger saw reached back to before."""
    patterns = synthesize(FleetPlan(seed=seed), (SlowPython(300),), 2)
    window = synthesize_window(patterns, "slow", synthesize(FleetPlan(seed=seed + 10_000), (), 1))
    assert window.baseline_iteration_s
    window = msgspec.structs.replace(window, current_iteration_s=1.3 * window.baseline_iteration_s)
    check(analyze("job", window, patterns), "python-on-critical-path", EVERYBODY, "_score_tokens")


@seeds
@pytest.mark.parametrize("factor", [1.6, 2, 4])
def test_threads_that_wait_for_a_core_are_contention(seed: int, factor: float) -> None:
    check(verdict_on(BusyHost((0,), factor), seed=seed), "cpu-contention", (0,))


@seeds
def test_two_causes_that_hide_each_other_are_both_found(seed: int) -> None:
    verdict = verdict_on(SlowLoader((2,), 40), BackwardHook((1,), 40), seed=seed)
    causes = {(one.cause, one.workers) for one in verdict.findings if one.role == "cause"}
    assert causes == {("slow-data-loading", (2,)), ("python-on-critical-path", (1,))}


@seeds
def test_a_culprit_inside_a_pipeline_stage_is_found_and_the_heavy_stage_is_not_one(seed: int) -> None:
    plan = {"workers": 8, "stages": 2, "accelerator": True}
    assert verdict_on(seed=seed, purpose="manual", **plan).verdict == "healthy"
    check(verdict_on(SlowCompute((3,), 1.5, "throttled"), seed=seed, **plan), "compute-slow", (3,))


def test_confidence_grows_with_the_evidence() -> None:
    small, large = (verdict_on(BackwardHook((1,), ms), seed=1).cause for ms in (10, 80))
    short, long = (verdict_on(BackwardHook((1,), 20), seed=1, iterations=n).cause for n in (8, 120))
    assert small is not None
    assert large is not None
    assert short is not None
    assert long is not None
    assert small.confidence < large.confidence
    assert short.confidence < long.confidence
