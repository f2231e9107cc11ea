"""A process that is stopped while the others are not needs nobody to be compared with."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Finding
from eroica.pipeline import analyze
from support import BackwardHook, FleetPlan, SlowCompute, Trouble, synthesize, synthesize_window

seeds = pytest.mark.parametrize("seed", range(3))


def pipeline(*troubles: Trouble, seed: int) -> list[WorkerPattern]:
    """Two stages of one worker each."""
    return synthesize(FleetPlan(workers=2, stages=2, seed=seed), troubles)


def causes(patterns: list[WorkerPattern]) -> list[Finding]:
    verdict = analyze("job", synthesize_window(patterns), patterns)
    return [one for one in verdict.findings if one.role == "cause"]


@seeds
@pytest.mark.parametrize(("fact", "told"), [("stopped", "stopped 7"), ("throttled", "held back by a CPU quota 7")])
def test_a_stage_that_stands_still_most_of_the_time_is_slow(fact: str, told: str, seed: int) -> None:
    found = causes(pipeline(SlowCompute((0,), 4.0, fact), seed=seed))
    assert [(one.cause, one.workers, one.scope) for one in found] == [("compute-slow", (0,), "some")]
    assert any(told in sentence for sentence in found[0].evidence)
    assert found[0].gain is not None and 0.4 < found[0].gain < 0.9


@seeds
def test_a_stage_that_takes_long_without_being_held_is_not(seed: int) -> None:
    assert not causes(pipeline(SlowCompute((0,), 4.0, "nothing_of_note"), seed=seed))


def test_a_quota_that_holds_many_threads_takes_all_of_the_time_and_no_more() -> None:
    patterns = pipeline(SlowCompute((0,), 4.0, "throttled"), seed=0)
    held = {**patterns[0].host_facts, "throttled": 5.3}
    patterns[0] = msgspec.structs.replace(patterns[0], host_facts=held)
    (found,) = causes(patterns)
    assert any("quota 100 % of the time" in sentence for sentence in found.evidence)
    assert found.gain is not None and 0 < found.gain < 1


@seeds
def test_a_job_that_is_stopped_as_a_whole_accuses_nobody(seed: int) -> None:
    paused = [
        msgspec.structs.replace(one, host_facts={**one.host_facts, "stopped": 0.5}) for one in pipeline(seed=seed)
    ]
    assert not causes(paused)


@seeds
def test_with_peers_their_operators_tell_how_much(seed: int) -> None:
    patterns = synthesize(FleetPlan(workers=4, seed=seed), [SlowCompute((2,), 3.0)])
    (found,) = causes(patterns)
    assert (found.cause, found.workers) == ("compute-slow", (2,))
    assert any("An operator takes" in sentence for sentence in found.evidence)


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
@pytest.mark.parametrize(("ms", "told"), [(12, {"compute-slow"}), (120, {"compute-slow", "python-on-critical-path"})])
def test_python_of_a_held_process_is_told_only_where_it_takes_longer_than_holding_makes_it(
    ms: float, told: set[str], seed: int
) -> None:
    patterns = synthesize(
        FleetPlan(workers=4, seed=seed), [SlowCompute((2,), 3.0, "throttled"), BackwardHook((2,), ms)]
    )
    assert {(one.cause, one.workers) for one in causes(patterns)} == {(cause, (2,)) for cause in told}


def test_a_quota_that_holds_a_sleeping_process_is_told_as_the_setting_without_a_function() -> None:
    patterns = synthesize(FleetPlan(workers=4, seed=1), [BackwardHook((2,), 50)])
    for at, pattern in enumerate(patterns):
        held = {**pattern.host_facts, "throttled": 0.45 * (at == 2), "cpu_count": 8.0}
        setup = {"cpu_quota": "0.2" if at == 2 else "none", "cores": "8"}
        patterns[at] = msgspec.structs.replace(pattern, host_facts=held, setup=setup)
    verdict = analyze("job", synthesize_window(patterns), patterns)
    assert verdict.cause is not None and (verdict.cause.cause, verdict.cause.workers) == ("misconfiguration", (2,))
    assert verdict.summary.startswith("Worker 2 is set up differently: CPU quota in cores is 0.2")
    assert "; that is" in verdict.summary and "no function" not in verdict.summary


@seeds
@pytest.mark.parametrize("workers", [3, 4, 8])
def test_throttled_time_that_the_kernel_adds_up_is_worth_no_more_than_the_worker_lost(workers: int, seed: int) -> None:
    """Four threads in one group: the kernel counts 4 s a second though the worker is half as fast as its peers."""
    patterns = synthesize(FleetPlan(workers=workers, seed=seed), [SlowCompute((2,), 2.0, "throttled")])
    (true,) = causes(patterns)
    held = {**patterns[2].host_facts, "throttled": 4.0}
    patterns[2] = msgspec.structs.replace(patterns[2], host_facts=held)
    (found,) = causes(patterns)
    assert found.cause == true.cause == "compute-slow"
    assert found.gain == pytest.approx(true.gain, abs=0.03)


@seeds
def test_a_quota_that_all_have_makes_nobody_worth_more(seed: int) -> None:
    patterns = synthesize(FleetPlan(workers=4, seed=seed), [SlowCompute((2,), 2.0, "nothing_of_note")])
    (plain,) = causes(patterns)
    held = [msgspec.structs.replace(one, host_facts={**one.host_facts, "throttled": 0.4}) for one in patterns]
    (found,) = causes(held)
    assert (found.cause, found.workers) == (plain.cause, plain.workers)
    assert found.gain == pytest.approx(plain.gain, abs=0.05)


@seeds
def test_a_stage_all_of_whose_workers_stand_still_is_slow_though_it_has_no_healthy_peers(seed: int) -> None:
    patterns = synthesize(FleetPlan(workers=4, stages=2, seed=seed), [SlowCompute((0, 2), 4.0, "stopped")])
    assert [(one.cause, one.workers) for one in causes(patterns)] == [("compute-slow", (0, 2))]
