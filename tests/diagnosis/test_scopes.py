"""Whom a verdict names: a host, a part of one, a stage, rank 0's duty, or nobody: the model was cut like that."""

from __future__ import annotations

import numpy as np
import pytest

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
from support.scope_troubles import ExtraDuty, SlowStage

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
    verdict = judge(ExtraDuty(30), seed=seed, workers=4)
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
