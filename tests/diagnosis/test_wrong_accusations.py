"""Windows in which somebody could be accused of what is somebody else's, older, or no fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from eroica.diagnosis.frames import activity_of
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.worker import ProcessGroup
from eroica.pipeline import analyze
from support import FleetPlan, SlowCompute, SlowLink, Trouble, synthesize, synthesize_window
from support.fleet import Draft, accused
from support.pipelines import Step, patterns_of_played, pipeline_programs, play
from support.troubles import LOGGING, Calls

seeds = pytest.mark.parametrize("seed", range(3))


def devices(seed: int, **more: object) -> FleetPlan:
    return FleetPlan(**{"workers": 8, "accelerator": True, "seed": seed, **more})  # type: ignore[arg-type]


def judged(now: Sequence[WorkerPattern], before: Sequence[WorkerPattern] = (), workers: int = 8) -> Verdict:
    window = synthesize_window(now, "slow" if before else "manual", before)
    return analyze("job", window, now, before, expected_workers=workers)


# --- an old rhythm that the healthy window was too short to see ---


@seeds
def test_a_rhythm_that_is_the_slowdown_is_told(seed: int) -> None:
    plan = FleetPlan(workers=4, iterations=160, seed=seed)
    before = synthesize(FleetPlan(workers=4, iterations=20, seed=seed, draw=1), (), 1)
    histograms = Calls(("write_histograms (project/monitor.py:8)",), (0,), 700, every=40)
    assert [workers for _, workers in accused(judged(synthesize(plan, [histograms], 2), before, workers=4))] == [(0,)]


# --- most workers are slow ---


@seeds
def test_nine_of_sixteen_that_have_become_slow_are_told(seed: int) -> None:
    before = synthesize(devices(seed, workers=16, draw=1), (), 1)
    slow = SlowCompute(tuple(range(9)), 1.4, fact="none")
    verdict = judged(synthesize(devices(seed, workers=16), [slow], 2), before, workers=16)
    assert [cause for cause, _ in accused(verdict)] == ["compute-slow"]


# --- what has always been so ---


ITERATIONS = 12


def slugs(verdict: Verdict) -> list[str]:
    return [cause for cause, _ in accused(verdict)]


def on_devices(patterns: Sequence[WorkerPattern]) -> list[WorkerPattern]:
    """The same of a job whose operators run on accelerators."""
    return [msgspec.structs.replace(pattern, has_accelerator=True) for pattern in patterns]


def without_senders(patterns: Sequence[WorkerPattern]) -> list[WorkerPattern]:
    """The same where no send or receive tells its other side, as kernels of several together do not."""
    return [
        msgspec.structs.replace(
            pattern, collectives=tuple(msgspec.structs.replace(one, peers=b"") for one in pattern.collectives)
        )
        for pattern in patterns
    ]


# --- two workers late in different places of an iteration ---


def two_places(late_us: tuple[float, float], transfer_us: float = 2_000.0) -> list[WorkerPattern]:
    """Workers 0 and 1 late before the first and before the second reduction of an iteration."""
    groups = [ProcessGroup(name="0", description="default_pg", ranks=(0, 1, 2, 3), backend="nccl")]
    noise = np.random.default_rng(1)
    programs: list[list[Step]] = []
    for rank in range(4):
        steps: list[Step] = []
        for _ in range(ITERATIONS):
            for place in range(2):
                own = 40_000.0 * float(np.exp(noise.normal(0, 0.01))) + (late_us[place] if rank == place else 0.0)
                steps += [Step("work", own), Step("all_reduce", transfer_us, "0")]
            steps += [Step("work", 100.0), Step("iteration")]
        programs.append(steps)
    return on_devices(patterns_of_played(play(programs, groups), groups))


def judge(now: list[WorkerPattern], before: list[WorkerPattern]) -> Verdict:
    return analyze("job", synthesize_window(now, "slow", before), now, before)


def test_waiting_for_one_worker_after_another_is_no_slow_transfer() -> None:
    verdict = judge(two_places((20_000.0, 20_000.0)), two_places((0.0, 0.0)))
    assert "slow-collective-everywhere" not in slugs(verdict)
    assert verdict.verdict == "slow"


# --- pipelines whose receives name no sender ---


def pipeline(late_us: float = 0.0) -> list[WorkerPattern]:
    """Four stages twice, few microbatches, and the last stage of the second replica late by as much in each of them."""
    work = [[10_000.0] * 4, [10_000.0, 10_000.0, 10_000.0, 10_000.0 + late_us]]
    programs, groups = pipeline_programs(work, ITERATIONS)
    return on_devices(patterns_of_played(play(programs, groups), groups))


@pytest.mark.parametrize("purpose", ["slow", "manual", "baseline"])
def test_the_bubble_of_a_pipeline_is_no_slow_transfer(purpose: str) -> None:
    patterns = without_senders(pipeline())
    verdict = analyze("job", synthesize_window(patterns, purpose), patterns)  # type: ignore[arg-type]
    assert verdict.findings == ()


# --- far slower than the healthy window, and nobody knows why ---


EVERYBODY = (0, 1, 2, 3)
METRICS = ("collect (project/metrics.py:30)", "summarize (project/metrics.py:60)")
DEVICE = ("forward (project/model.py:30)", "synchronize (project/device.py:12)")


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


# --- what uses no core ---


@seeds
@pytest.mark.parametrize("workers", [(1,), EVERYBODY])
def test_a_wait_for_a_device_that_lasts_a_third_longer_is_named(seed: int, workers: tuple[int, ...]) -> None:
    healthy = Calls(DEVICE, EVERYBODY, 80, use=0.03)
    verdict = verdict_on(healthy, Calls(DEVICE, workers, 28, use=0.03), seed=seed, before=(healthy,), iterations=100)
    assert accused(verdict) == [("python-on-critical-path", workers)], verdict.summary
    assert verdict.cause is not None and verdict.cause.function.name in ("forward", "synchronize")


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
