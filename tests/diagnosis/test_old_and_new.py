"""What a job has always done, what only waits, and what differs though it uses no core: jobs nobody made rules for."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from eroica.diagnosis.activities import activity_of
from eroica.model.pattern import WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, SlowLink, Trouble, synthesize, synthesize_window
from support.code_troubles import LOGGING, Calls
from support.fleet import Draft, accused

EVERYBODY = (0, 1, 2, 3)
METRICS = ("collect (project/metrics.py:30)", "summarize (project/metrics.py:60)")
DEVICE = ("forward (project/model.py:30)", "synchronize (project/device.py:12)")
SCORE = ("score (project/reward.py:25)",)
seeds = pytest.mark.parametrize("seed", range(3))


def verdict_on(
    *troubles: Trouble,
    seed: int,
    purpose: str = "slow",
    before: tuple[Trouble, ...] = (),
    healthy_iterations: int = 40,
    **plan: object,
) -> Verdict:
    healthy = synthesize(FleetPlan(seed=seed + 10_000, **{**plan, "iterations": healthy_iterations}), before, 1)
    patterns = synthesize(FleetPlan(seed=seed, **plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, purpose, healthy), patterns, healthy)


@dataclass(frozen=True)
class Everything:
    """All that all workers do takes longer."""

    factor: float

    def apply(self, draft: Draft) -> None:
        for key in draft.time_us:
            draft.time_us[key] = self.factor * draft.time_us[key]


# --- what has always been so ---


@seeds
@pytest.mark.parametrize("frames", [METRICS, LOGGING], ids=["metrics", "logging"])
def test_what_one_worker_has_always_done_more_has_not_made_the_job_slower(seed: int, frames: tuple[str, ...]) -> None:
    duty = Calls(frames, (0,), 9)
    assert (0,) in [workers for _, workers in accused(verdict_on(duty, seed=seed, purpose="manual"))]
    verdict = verdict_on(duty, Everything(1.18), seed=seed, before=(duty,))
    assert (verdict.verdict, accused(verdict)) == ("undetermined", []), verdict.summary


@seeds
def test_what_has_grown_since_is_a_cause_though_it_was_there(seed: int) -> None:
    verdict = verdict_on(Calls(METRICS, (0,), 40), seed=seed, before=(Calls(METRICS, (0,), 22),))
    assert accused(verdict) == [("python-on-critical-path", (0,))], verdict.summary


# --- what uses no core ---


@seeds
@pytest.mark.parametrize("workers", [(1,), EVERYBODY])
def test_a_wait_for_a_device_that_lasts_a_third_longer_is_named(seed: int, workers: tuple[int, ...]) -> None:
    healthy = Calls(DEVICE, EVERYBODY, 80, use=0.03)
    verdict = verdict_on(healthy, Calls(DEVICE, workers, 28, use=0.03), seed=seed, before=(healthy,), iterations=100)
    assert accused(verdict) == [("python-on-critical-path", workers)], verdict.summary
    assert verdict.cause is not None and verdict.cause.function.name in ("forward", "synchronize")


@seeds
@pytest.mark.parametrize("workers", [(1,), EVERYBODY])
def test_of_a_function_that_computes_a_third_more_is_within_what_busy_cores_do(
    seed: int, workers: tuple[int, ...]
) -> None:
    healthy = Calls(DEVICE, EVERYBODY, 80, use=0.95)
    verdict = verdict_on(healthy, Calls(DEVICE, workers, 28, use=0.95), seed=seed, before=(healthy,), iterations=100)
    assert "python-on-critical-path" not in [cause for cause, _ in accused(verdict)], verdict.summary


# --- who only waits ---


def never_meeting(patterns: list[WorkerPattern]) -> list[WorkerPattern]:
    """Workers that have nothing to do with each other."""
    apart = []
    for one in patterns:
        wait_I, iteration_I = decode_series(one.wait_us, np.float32), decode_series(one.iteration_us, np.float32)
        rows = tuple(row for row in one.functions if row.key.kind != "collective")
        iteration, none = encode_series(iteration_I - wait_I), encode_series(np.zeros_like(wait_I))
        apart.append(msgspec.structs.replace(one, wait_us=none, iteration_us=iteration, functions=rows, collectives=()))
    return apart


@seeds
def test_nobody_waits_for_who_meets_nobody(seed: int) -> None:
    patterns = never_meeting(synthesize(FleetPlan(seed=seed), (Calls(SCORE, (2,), 30),), 2))
    assert accused(analyze("job", synthesize_window(patterns, "manual"), patterns)) == []


def meeting_every(patterns: list[WorkerPattern], every: int) -> list[WorkerPattern]:
    """The same job if its workers met in every so many iterations only, and waited then for all that they are ahead."""
    apart = []
    for one in patterns:
        wait_I, iteration_I = decode_series(one.wait_us, np.float32), decode_series(one.iteration_us, np.float32)
        meets_I = np.arange(wait_I.size) % every == every - 1
        waits_I = np.where(meets_I, np.add.accumulate(wait_I), 0.0)
        waits_I[meets_I] = np.diff(waits_I[meets_I], prepend=0.0)
        series = encode_series(waits_I.astype(np.float32))
        rows = tuple(
            msgspec.structs.replace(row, per_iteration_us=series) if row.key.kind == "collective" else row
            for row in one.functions
        )
        iteration = encode_series((iteration_I - wait_I + waits_I).astype(np.float32))
        apart.append(
            msgspec.structs.replace(one, wait_us=series, iteration_us=iteration, functions=rows, collectives=())
        )
    return apart


@seeds
def test_and_blame_nobody_where_none_is_slow(seed: int) -> None:
    healthy = meeting_every(synthesize(FleetPlan(seed=seed + 10_000), (), 1), 20)
    patterns = meeting_every(synthesize(FleetPlan(seed=seed, iterations=200), (), 2), 20)
    verdict = analyze("job", synthesize_window(patterns, "manual", healthy), patterns, healthy)
    assert accused(verdict) == [], verdict.summary


# --- now and then ---


@seeds
def test_an_evaluation_that_the_healthy_window_was_too_short_for_is_not_new(seed: int) -> None:
    evaluation = Calls(("evaluate (project/train.py:80)",), EVERYBODY, 300, every=40)
    verdict = verdict_on(evaluation, seed=seed, purpose="manual", healthy_iterations=12, iterations=80)
    assert accused(verdict) == [], verdict.summary


# --- without a healthy window ---


@seeds
def test_a_function_far_larger_than_the_slowdown_does_not_explain_it(seed: int) -> None:
    device = Calls(DEVICE, EVERYBODY, 160, use=0.02)
    healthy = synthesize(FleetPlan(seed=seed + 10_000), (device,), 1)
    patterns = synthesize(FleetPlan(seed=seed), (device, SlowLink(60)), 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", healthy), patterns)
    assert accused(verdict) == [], verdict.summary


# --- loggers around the loop ---

WRAPPED = ("<module> (train.py:1)", "catch_wrapper (loguru/_logger.py:1280)", "main (train.py:90)")
PATCHED = ("main (train.py:90)", "safe_patch_function (mlflow/utils/autologging_utils/safety.py:450)")


@pytest.mark.parametrize(
    ("stack", "activity"),
    [
        ((*WRAPPED, "train_step (train.py:40)"), ""),
        (
            (*WRAPPED, "train_step (train.py:40)", "info (loguru/_logger.py:2000)", "emit (loguru/_handler.py:130)"),
            "log",
        ),
        (("main (train.py:9)", "catch_wrapper (loguru/_logger.py:1280)", "fit (train.py:90)", "step (train.py:4)"), ""),
        ((*PATCHED, "fit (lightning/pytorch/trainer/trainer.py:530)", "training_step (model.py:30)"), ""),
        ((*PATCHED, "fit (train.py:30)", "_call_impl (torch/nn/modules/module.py:1750)", "forward (model.py:9)"), ""),
        (
            ("main (train.py:90)", "report (train.py:80)", "log (wandb/sdk/wandb_run.py:1700)", "sink (train.py:5)"),
            "log",
        ),
        (("<module> (train.py:1)", "info (loguru/_logger.py:2000)", "emit (loguru/_handler.py:130)"), "log"),
    ],
)
def test_a_logger_around_the_loop_does_not_make_everything_logging(stack: tuple[str, ...], activity: str) -> None:
    assert activity_of(stack) == activity
