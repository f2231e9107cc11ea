"""Each trouble of a synthetic fleet, at several sizes and seeds: cause, workers and function must be right."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Finding, Verdict
from eroica.pipeline import analyze
from support import (
    BackwardHook,
    FleetPlan,
    SlowCompute,
    SlowHostLink,
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


# --- what the job's own growth says of a gain ---


def growth(verdict: Verdict) -> float:
    assert verdict.iteration.baseline_ms and verdict.iteration.current_ms
    return 1 - verdict.iteration.baseline_ms / verdict.iteration.current_ms


@seeds
@pytest.mark.parametrize("trouble", [SlowPython(60.0), BackwardHook((2,), 60.0)])
def test_a_cause_that_accounts_for_the_slowdown_gains_what_it_took(trouble: Trouble, seed: int) -> None:
    verdict = verdict_on(trouble, seed=seed)
    found = verdict.cause
    assert found is not None and found.gain is not None
    assert found.gain >= 0.9 * growth(verdict)
    assert found.gain <= max(growth(verdict), 0.6)


@seeds
def test_a_cause_that_is_a_small_part_of_the_slowdown_keeps_its_own_gain(seed: int) -> None:
    troubles = [SlowPython(8.0), SlowCompute(EVERYBODY, 1.28, fact="nothing_of_note")]
    before, patterns = synthesize(FleetPlan(seed=seed + 100), (), 1), synthesize(FleetPlan(seed=seed), troubles, 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    python = [one for one in verdict.findings if one.cause == "python-on-critical-path" and one.role == "cause"]
    assert all((one.gain or 0.0) < 0.7 * growth(verdict) for one in python)
    assert growth(verdict) > 0.2


@seeds
def test_two_workers_with_troubles_of_their_own_under_one_frame_are_two_causes(seed: int) -> None:
    hooks = [BackwardHook((1,), 40.0), BackwardHook((2,), 40.0, "round_grad (project/rounding.py:12)")]
    verdict = verdict_on(*hooks, seed=seed)
    told = {(one.function.name, one.workers) for one in verdict.findings if one.role == "cause"}
    assert told == {("scale_grad", (1,)), ("round_grad", (2,))}


# --- a process that is stopped while the others are not ---


def pipeline(*troubles: Trouble, seed: int) -> list[WorkerPattern]:
    """Two stages of one worker each."""
    return synthesize(FleetPlan(workers=2, stages=2, seed=seed), troubles)


def causes(patterns: list[WorkerPattern]) -> list[Finding]:
    verdict = analyze("job", synthesize_window(patterns), patterns)
    return [one for one in verdict.findings if one.role == "cause"]


@seeds
def test_a_job_that_is_stopped_as_a_whole_accuses_nobody(seed: int) -> None:
    paused = [
        msgspec.structs.replace(one, host_facts={**one.host_facts, "stopped": 0.5}) for one in pipeline(seed=seed)
    ]
    assert not causes(paused)


@seeds
@pytest.mark.parametrize(("stopped", "cause"), [(0.45, "compute-slow"), (0.05, "python-on-critical-path")])
def test_a_process_that_mostly_sleeps_is_late_because_it_is_stopped_not_for_where_it_sleeps(
    stopped: float, cause: str, seed: int
) -> None:
    patterns = synthesize(FleetPlan(workers=4, seed=seed), [BackwardHook((2,), 50)])
    held = {**patterns[2].host_facts, "stopped": stopped}
    patterns[2] = msgspec.structs.replace(patterns[2], host_facts=held)
    verdict = analyze("job", synthesize_window(patterns), patterns)
    assert verdict.cause is not None and (verdict.cause.cause, verdict.cause.workers) == (cause, (2,))
    assert ("is stopped 45 % of the time" in verdict.summary) == (stopped > 0.4)
    assert not [line for one in verdict.findings for line in one.evidence if "no function" in line]


@seeds
def test_a_stage_all_of_whose_workers_stand_still_is_slow_though_it_has_no_healthy_peers(seed: int) -> None:
    patterns = synthesize(FleetPlan(workers=4, stages=2, seed=seed), [SlowCompute((0, 2), 4.0, "stopped")])
    assert [(one.cause, one.workers) for one in causes(patterns)] == [("compute-slow", (0, 2))]


# --- several hosts: a slow link is named by its host, and nothing else is taken for one ---


def on_hosts(
    *troubles: Trouble, seed: int, hosts: int = 3, purpose: str = "slow", baseline: bool = True, links: bool = True
) -> Verdict:
    plan = {"workers": 2 * hosts, "per_host": 2}
    healthy = synthesize(FleetPlan(seed=seed + 10_000, **plan), (), 1)
    patterns = synthesize(FleetPlan(seed=seed, **plan), troubles, 2)
    if not links:
        patterns = [msgspec.structs.replace(pattern, links=()) for pattern in patterns]
    window = synthesize_window(patterns, purpose, healthy)
    return analyze("job", window, patterns, healthy if baseline else ())


@seeds
@pytest.mark.parametrize("hosts", [3, 5])
@pytest.mark.parametrize("ms", [60, 300])
@pytest.mark.parametrize("baseline", [True, False])
def test_a_slow_link_is_named_by_its_host(seed: int, hosts: int, ms: float, baseline: bool) -> None:
    verdict = on_hosts(SlowHostLink((1,), ms), seed=seed, hosts=hosts, baseline=baseline)
    found = verdict.cause
    assert verdict.verdict == "slow", verdict.summary
    assert found is not None
    assert (found.cause, found.scope, found.hosts, found.workers) == ("slow-link", "some", ("node-1",), (2, 3))
    assert [one.role for one in verdict.findings] == ["cause"]
    assert verdict.summary.startswith("The network link of node-1 is slow: data waits on it ")
    assert found.resource is not None and found.resource.peers_mean is not None
    assert found.resource.mean < found.resource.peers_mean / 3
    assert found.gain == pytest.approx(ms / verdict.iteration.current_ms, rel=0.35)
    assert found.confidence > 0.7


@seeds
@pytest.mark.parametrize("purpose", ["manual", "slow"])
@pytest.mark.parametrize("baseline", [True, False])
def test_a_healthy_fleet_on_several_hosts_has_no_slow_link(seed: int, purpose: str, baseline: bool) -> None:
    assert on_hosts(seed=seed, purpose=purpose, baseline=baseline).cause is None


@seeds
def test_a_slow_host_is_named_as_slow_and_not_as_its_link(seed: int) -> None:
    verdict = on_hosts(SlowCompute((2, 3), 3.0), seed=seed)
    causes = [one for one in verdict.findings if one.role == "cause"]
    assert [(one.cause, one.workers) for one in causes] == [("compute-slow", (2, 3))]


@seeds
def test_without_the_connections_it_is_slow_communication(seed: int) -> None:
    found = on_hosts(SlowHostLink((1,), 300), seed=seed, links=False).cause
    assert found is not None
    assert found.cause == "slow-collective-everywhere"
