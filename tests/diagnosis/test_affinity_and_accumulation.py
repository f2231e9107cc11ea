"""Causes that need no healthy window: too few cores beside idle ones, and gradients exchanged in every pass."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from eroica.diagnosis.cores import listed_cores
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, SlowLink, SlowLoader, SlowPython, Trouble, synthesize, synthesize_window

seeds = pytest.mark.parametrize("seed", range(3))


def judged(patterns: Sequence[WorkerPattern], baseline: Sequence[WorkerPattern] = ()) -> Verdict:
    """In a job that takes twice as long as its user expects."""
    window = synthesize_window(patterns, "expected")
    expected_s = (window.current_iteration_s or 0.0) / 2
    window = msgspec.structs.replace(window, baseline_iteration_s=expected_s)
    return analyze("job", window, patterns, baseline, settings=Settings(expected_iteration_s=expected_s))


# --- too few cores ---


def on_cores(
    patterns: Sequence[WorkerPattern], affinity: str, busy: float, job: float, queue: float
) -> list[WorkerPattern]:
    facts = {"cpu_count": 8.0, "host_busy": busy, "cores_job": job, "run_queue_wait": queue}
    return [
        msgspec.structs.replace(one, host_facts={**one.host_facts, **facts}, setup={"affinity": affinity})
        for one in patterns
    ]


@seeds
@pytest.mark.parametrize("job", [0.98, 0.75])  # in step with each other, they want it at the same time
def test_workers_that_share_one_core_beside_idle_ones_are_told_so(job: float, seed: int) -> None:
    verdict = judged(on_cores(synthesize(FleetPlan(workers=4, seed=seed)), "2", busy=0.2, job=job, queue=0.6))
    found = verdict.cause
    assert found is not None
    assert (found.cause, found.scope, found.workers) == ("cpu-contention", "all", (0, 1, 2, 3))
    assert "share one core" in verdict.summary and "6.4 of 8 cores are idle" in verdict.summary
    assert found.gain == pytest.approx(0.6, abs=0.01)
    assert "taskset" in found.next_step


@seeds
@pytest.mark.parametrize(
    ("affinity", "busy", "job", "queue"),
    [
        ("0-7", 0.2, 0.98, 0.6),  # they may use all
        ("0-3", 0.2, 0.98, 0.6),  # and do not use what they may
        ("2", 0.99, 0.98, 0.6),  # no other core is idle
        ("2", 0.2, 0.98, 0.1),  # nobody waits
        ("2", 0.2, 0.60, 0.6),  # for somebody else
        ("", 0.2, 0.98, 0.6),  # unknown
    ],
)
def test_otherwise_they_are_not(affinity: str, busy: float, job: float, queue: float, seed: int) -> None:
    verdict = judged(on_cores(synthesize(FleetPlan(workers=4, seed=seed)), affinity, busy, job, queue))
    assert verdict.cause is None


@seeds
@pytest.mark.parametrize(("siblings", "gain"), [("4-7", 0.2), ("", 0.5)])
def test_an_idle_hyper_thread_of_a_busy_core_is_no_idle_core(siblings: str, gain: float, seed: int) -> None:
    patterns = on_cores(synthesize(FleetPlan(workers=4, seed=seed)), "0-3", busy=0.5, job=3.9, queue=0.6)
    set_up = [msgspec.structs.replace(one, setup={**one.setup, "siblings": siblings}) for one in patterns]
    found = judged(set_up).cause
    assert found is not None and found.cause == "cpu-contention"
    assert found.gain == pytest.approx(gain, abs=0.01)


@seeds
def test_workers_that_have_always_shared_a_core_are_not_the_reason_why_they_got_slower(seed: int) -> None:
    before = on_cores(synthesize(FleetPlan(workers=4, seed=seed + 100), (), 1), "2", busy=0.2, job=0.98, queue=0.55)
    slow = synthesize(FleetPlan(workers=4, seed=seed), [SlowPython(60.0)], 2)
    now = on_cores(slow, "2", busy=0.2, job=0.98, queue=0.6)
    found = analyze("job", synthesize_window(now, "slow", before), now, before).cause
    assert found is not None and found.cause == "python-on-critical-path"


def test_in_a_job_that_nobody_finds_slow_they_are_as_somebody_wanted_them() -> None:
    patterns = on_cores(synthesize(FleetPlan(workers=4, seed=1)), "2", busy=0.2, job=0.98, queue=0.6)
    assert analyze("job", synthesize_window(patterns), patterns).cause is None


@pytest.mark.parametrize(
    ("listed", "cores"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("all", set()), ("1-x", set()), ("9" * 5000, set())],
)
def test_lists_of_cores(listed: str, cores: set[int]) -> None:
    assert listed_cores(listed) == cores


# --- gradients ---


def counted(name: str, phase: str, count: float, iterations: int) -> FunctionPattern:
    key = FunctionKey(kind="compute", name=name, phase=phase, thread="training")  # type: ignore[arg-type]
    return FunctionPattern(key=key, beta=0.0, total_s=1e-3, count=round(count * iterations))


def reduced(seed: int, troubles: Sequence[Trouble], exchanged: int, passes: int = 4, steps: int = 1) -> Verdict:
    """A fleet with two all-reduces an iteration whose reducer ran for `exchanged` gradients of 20."""
    patterns = []
    for one in synthesize(FleetPlan(workers=4, seed=seed), troubles):
        n = one.last_iteration - one.first_iteration
        more = (
            counted("torch::distributed::reducer::mul_out", "backward", exchanged, n),
            counted("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "backward", 20, n),
            counted("NllLossBackward0", "backward", passes, n),
            counted("AddmmBackward0", "backward", 9 * passes, n),
            counted("aten::_foreach_addcdiv_", "optimizer", steps, n),
        )
        rows = [
            msgspec.structs.replace(row, count=passes * n) if row.key.kind == "collective" else row
            for row in one.functions
        ]
        patterns.append(msgspec.structs.replace(one, functions=(*rows, *more)))
    return judged(patterns)


@seeds
def test_gradients_that_are_exchanged_in_every_pass_are_a_cause(seed: int) -> None:
    verdict = reduced(seed, [SlowLink(30.0)], exchanged=20)
    found = verdict.cause
    assert found is not None
    assert (found.cause, found.scope, found.function.name) == ("fragmented-collectives", "all", "gloo:all_reduce")
    assert "after each of the 4 backward passes" in verdict.summary
    assert "no_sync" in found.next_step
    assert found.gain == pytest.approx(0.75 * 33 / 93, abs=0.06)


@seeds
def test_gradients_that_are_exchanged_once_a_step_are_none(seed: int) -> None:
    assert reduced(seed, [SlowLink(30.0)], exchanged=5).cause is None
    assert reduced(seed, [SlowLink(30.0)], exchanged=20, passes=1).cause is None
    assert reduced(seed, [SlowLink(30.0)], exchanged=20, passes=2, steps=2).cause is None


@seeds
def test_waiting_for_a_late_worker_is_not_counted_as_exchange(seed: int) -> None:
    found = reduced(seed, [SlowLoader((2,), 60.0)], exchanged=20).cause
    assert found is not None and (found.cause, found.workers) == ("slow-data-loading", (2,))
