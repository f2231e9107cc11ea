"""What a job has always done is no cause when it gets slower, or when somebody looks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from eroica.model.verdict import Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import FleetPlan, LargerBatches, SlowCompute, Trouble, synthesize, synthesize_window
from support.fleet import accused
from support.troubles import Calls, Reads, WanderingPause

seeds = pytest.mark.parametrize("seed", range(3))
ALL = (0, 1, 2, 3)
DEVICE = {"accelerator": True}
COLLECTING = Calls(("collect (project/metrics.py:30)", "summarize (project/metrics.py:60)"), ALL, 40, use=0.9)


def judge(
    now: Sequence[Trouble],
    then: Sequence[Trouble],
    seed: int,
    purpose: WindowPurpose = "slow",
    iterations_then: int = 40,
    **plan: object,
) -> Verdict:
    before = synthesize(FleetPlan(seed=seed, draw=1, iterations=iterations_then, **plan), then, 1)  # type: ignore[arg-type]
    patterns = synthesize(FleetPlan(seed=seed, iterations=40, **plan), now, 2)  # type: ignore[arg-type]
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before)


@seeds
def test_python_that_a_device_job_always_runs_is_no_cause(seed: int) -> None:
    assert not accused(judge([COLLECTING], [COLLECTING], seed, **DEVICE))
    slow = judge([COLLECTING, SlowCompute((1,), 1.6, "none")], [COLLECTING], seed, **DEVICE)
    assert [(one.cause, one.workers) for one in slow.findings if one.role == "cause"] == [("compute-slow", (1,))]


@seeds
def test_a_rhythm_that_a_short_baseline_could_not_show_is_no_cause(seed: int) -> None:
    rhythm = Calls(("evaluate (project/train.py:120)", "score (project/metrics.py:80)"), ALL, 500, every=20, use=0.9)
    verdict = judge([rhythm], [rhythm], seed, "manual", iterations_then=10)
    assert not accused(verdict), verdict.summary


@seeds
def test_a_pause_of_another_worker_each_time_is_pinned_on_nobody(seed: int) -> None:
    verdict = judge([WanderingPause(150, chance=0.15)], [], seed)
    (found,) = [one for one in verdict.findings if one.role == "cause"]
    assert (found.workers, found.scope, found.function.name) == ((), "rotating", "save_shard"), verdict.summary


@seeds
def test_a_job_that_became_a_quarter_slower_is_not_called_healthy(seed: int) -> None:
    verdict = judge([LargerBatches(1.3)], [], seed, "manual", **DEVICE)
    assert verdict.verdict == "undetermined", verdict.summary


@seeds
@pytest.mark.parametrize("workers", [ALL, (2,)])
def test_of_two_functions_of_the_loader_the_one_that_grew_is_named(seed: int, workers: tuple[int, ...]) -> None:
    decode = Reads(("__getitem__ (project/dataset.py:41)", "decode (project/dataset.py:60)"), ALL, 70, use=0.9)
    augment = Reads(("__getitem__ (project/dataset.py:41)", "augment (project/dataset.py:80)"), workers, 40, use=0.9)
    verdict = judge([decode, augment], [decode], seed, loader_workers=1)
    found = [one for one in verdict.findings if one.role == "cause"]
    assert found and found[0].function.name == "augment", verdict.summary


@seeds
@pytest.mark.parametrize("workers", [(1,), ALL])
def test_a_wait_for_a_device_that_lasts_a_third_longer_is_named(seed: int, workers: tuple[int, ...]) -> None:
    stack = ("forward (project/model.py:30)", "synchronize (project/device.py:12)")
    healthy = Calls(stack, ALL, 80, use=0.03)
    verdict = judge([healthy, Calls(stack, workers, 28, use=0.03)], [healthy], seed)
    assert accused(verdict) == [("python-on-critical-path", workers)], verdict.summary
    assert verdict.cause is not None and verdict.cause.function.name in ("forward", "synchronize")
