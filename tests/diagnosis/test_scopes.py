"""Whom a verdict names: a host, a part of one, a stage, rank 0's duty, or nobody: the model was cut like that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import (
    FleetPlan,
    SlowCompute,
    Trouble,
    synthesize,
    synthesize_window,
)
from support.fleet import Draft, causes
from support.troubles import Calls, SlowStage, WanderingPause

DEVICES = {"accelerator": True, "iterations": 20}
seeds = pytest.mark.parametrize("seed", range(3))


def judge(
    *troubles: Trouble,
    seed: int = 0,
    purpose: WindowPurpose = "slow",
    baseline: bool = True,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    **plan: object,
) -> Verdict:
    before = synthesize(FleetPlan(seed=seed, **plan), (), 1) if baseline else []
    patterns = synthesize(FleetPlan(seed=seed, draw=1, **plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before, settings=settings)


def cause(verdict: Verdict) -> Finding:
    assert len(causes(verdict)) == 1, verdict.summary
    return causes(verdict)[0]


# --- hosts ---


@seeds
def test_a_host_whose_workers_are_all_slow_is_named_as_a_host(seed: int) -> None:
    verdict = judge(SlowCompute(tuple(range(8, 16)), 1.6, "throttled"), seed=seed, workers=32, **DEVICES)
    found = cause(verdict)
    assert verdict.summary.startswith("Host node-1 (workers 8 to 15) computes the same operators 1.6 times as slowly")
    assert "the other 24 workers wait for it" in verdict.summary
    assert (found.cause, found.workers, found.hosts, found.scope) == (
        "compute-slow",
        tuple(range(8, 16)),
        ("node-1",),
        "some",
    )
    assert found.next_step.startswith("Check host node-1 first")


def test_many_hosts_with_the_same_trouble_are_one_finding_that_counts_them() -> None:
    slow = tuple(range(8, 32)) + tuple(range(64, 96))
    verdict = judge(SlowCompute(slow, 1.5, "throttled"), workers=256, accelerator=True, iterations=10)
    assert cause(verdict).workers == slow
    assert verdict.summary.startswith("7 hosts (node-1, node-2, ...; 56 workers) compute")
    assert "what these hosts have in common" in cause(verdict).next_step


# --- rank 0 ---


@seeds
def test_what_only_rank_0_does_is_its_extra_duty(seed: int) -> None:
    verdict = judge(Calls(("log_metrics (project/train.py:90)",), (0,), 30, use=0.9), seed=seed, workers=4)
    assert (cause(verdict).workers, cause(verdict).function.name) == ((0,), "log_metrics")
    assert "rank 0's extra duty, which no other worker runs" in verdict.summary


# --- pipelines ---


def test_where_shorter_iterations_are_expected_a_heavy_stage_is_the_cause() -> None:
    settings = Settings(expected_iteration_s=0.03)
    verdict = judge(purpose="expected", baseline=False, settings=settings, workers=8, stages=2, **DEVICES)
    assert (cause(verdict).cause, cause(verdict).workers) == ("stage-imbalance", ())


@seeds
@pytest.mark.parametrize(("stage", "members"), [(0, (0, 2, 4, 6)), (1, (1, 3, 5, 7))])
def test_a_stage_that_became_slow_as_a_whole_is_no_structure(seed: int, stage: int, members: tuple[int, ...]) -> None:
    verdict = judge(SlowStage(stage, 1.8), seed=seed, workers=8, stages=2, **DEVICES)
    assert (cause(verdict).cause, cause(verdict).workers, cause(verdict).scope) == ("compute-slow", members, "some")
    assert not any("structurally" in note for note in verdict.coverage.notes)


def test_stated_roles_decide_who_is_compared() -> None:
    """Workers 1, 3, 5 and 7 have a longer stage; said to be of one role with the others they are all late."""
    plan = {"workers": 8, "stages": 2, **DEVICES}
    apart = judge(purpose="manual", baseline=False, settings=Settings(roles="a=0,2,4,6;b=1,3,5,7"), **plan)
    assert apart.findings == ()
    online = judge(purpose="manual", settings=Settings(roles="a=0-99"), **plan)
    assert online.verdict == "undetermined" and "this job has ranks 0 to 7 only" in online.summary


# --- all ---


@seeds
def test_frames_that_enter_a_collective_are_its_waiting_and_no_code(seed: int) -> None:
    class Entering:
        def apply(self, draft: Draft) -> None:
            frames = ("step (project/own.py:4)", "all_gather_single (torch/distributed/distributed_c10d.py:4291)")
            draft.add(draft.forward_frame(*frames), np.full(draft.shape, 15e3), 1.0, 0.5)

    verdict = judge(Entering(), seed=seed, workers=4)
    assert all(one.cause != "python-on-critical-path" for one in causes(verdict)), verdict.summary


# --- culprits that change from iteration to iteration ---


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workers", [3, 4])
def test_what_somebody_does_in_each_iteration_is_told_once_and_as_wandering(workers: int, seed: int) -> None:
    """On average all do it, longer than when the job was healthy; who waits for whom tells more."""
    pause = WanderingPause(60, chance=1.0, frame="shuffle (project/mix.py:5)")
    found = cause(judge(pause, seed=seed, workers=workers))
    assert (found.scope, found.workers) == ("rotating", ())
    assert found.function is not None and found.function.name == "shuffle"
    assert found.gain == pytest.approx(0.47, abs=0.05)


@pytest.mark.parametrize(("workers", "count"), [(2, 20), (4, 20), (8, 20), (64, 4)])
@pytest.mark.parametrize("accelerator", [False, True])
def test_healthy_jitter_is_nobodys_turn(workers: int, count: int, accelerator: bool) -> None:
    found = []
    for seed in range(count):
        for baseline in (True, False):
            verdict = judge(
                seed=seed, purpose="manual", baseline=baseline, workers=workers, accelerator=accelerator, iterations=20
            )
            found += [(seed, verdict.summary) for one in verdict.findings if one.role == "cause"]
    assert found == []


@pytest.mark.parametrize("seed", range(3))
def test_of_many_devices_a_few_iterations_are_enough_not_to_call_wandering_pauses_healthy(seed: int) -> None:
    plan = {"workers": 256, "accelerator": True, "iterations": 4, "seed": seed, "baseline": False}
    verdict = judge(WanderingPause(60, frame="shuffle (project/mix.py:5)"), purpose="manual", **plan)  # type: ignore[arg-type]
    assert verdict.verdict != "healthy"
    assert "shuffle" in verdict.summary
    calm = judge(purpose="manual", **plan)  # type: ignore[arg-type]
    assert calm.verdict == "healthy", calm.summary


# --- loaders that are equally slow: chance says whose worker waits ---


@dataclass(frozen=True)
class Loading:
    """What each worker waits for its batch, and the share of the time in which its loader processes work."""

    stalls_ms: tuple[float, ...]
    busy: tuple[float, ...]
    in_turn: bool = False

    def apply(self, draft: Draft) -> None:
        """The rest of the time the processes wait for orders."""
        noise = np.exp(draft.noise.normal(0, 0.1, draft.shape))
        stalls_WI = 1e3 * np.asarray(self.stalls_ms)[:, None] * noise
        if self.in_turn:
            stalls_WI = draft.noise.permuted(stalls_WI, axis=0)
        draft.add(draft.wait_for_batch(), stalls_WI, 1, 0.02)
        whole_I = np.sum(list(draft.time_us.values()), axis=0).max(axis=0) + draft.transfer_us
        busy_W1 = np.asarray(self.busy)[:, None]
        for key in draft.child_us:
            draft.child_us[key] = whole_I * (busy_W1 if key.name == "__getitem__" else 1 - busy_W1)


def fleet(seed: int, loading: Loading, draw: int = 0) -> list[WorkerPattern]:
    plan = FleetPlan(workers=4, seed=seed, draw=draw, loader_workers=1)
    return synthesize(plan, [loading], draw + 1)


@seeds
def test_that_one_after_another_waits_for_them_is_no_cause_of_its_own(seed: int) -> None:
    before = fleet(seed, Loading((1.0,) * 4, (0.1,) * 4))
    now = fleet(seed, Loading((10.0, 60.0, 10.0, 10.0), (0.95,) * 4, in_turn=True), draw=1)
    verdict = analyze("job", synthesize_window(now, "slow", before), now, before)
    causes = [(found.cause, found.scope) for found in verdict.findings if found.role == "cause"]
    assert causes == [("slow-data-loading", "all")]
