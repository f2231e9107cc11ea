"""Processes beside the job: named where they took what the workers lack, left alone where nobody is slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from eroica.model.pattern import Neighbor, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import (
    BusyHost,
    FleetPlan,
    SlowCompute,
    Trouble,
    synthesize,
    synthesize_window,
)

BURNER = Neighbor(name="python (serve.py)", pid=777, cpu_cores=6.0)
DAEMON = Neighbor(name="dockerd", pid=55, cpu_cores=0.3)
seeds = pytest.mark.parametrize("seed", range(3))


def beside(
    patterns: Sequence[WorkerPattern], hosts: Sequence[str], neighbors: tuple[Neighbor, ...], **facts: float
) -> list[WorkerPattern]:
    """The patterns with these neighbors on some hosts, and a daemon alone on all others."""
    changed = []
    for pattern in patterns:
        mine = (*neighbors, DAEMON) if pattern.worker.host in hosts else (DAEMON,)
        known = {"cores_outside": sum(one.cpu_cores for one in mine), "cores_worker": 1.0, "cores_job": 4.0}
        known |= {"host_busy": 0.5, "steal": 0.0}
        more = facts if pattern.worker.host in hosts else {}
        own = {**pattern.host_facts, **known, **more}
        changed.append(msgspec.structs.replace(pattern, neighbors=mine, host_facts=own))
    return changed


def verdict_on(
    troubles: Sequence[Trouble],
    seed: int,
    now: Callable[[list[WorkerPattern]], list[WorkerPattern]],
    purpose: str = "slow",
    baseline: bool = True,
    **plan: object,
) -> Verdict:
    fleet = {"workers": 8, "per_host": 4, "cores": 8, **plan}
    before = beside(synthesize(FleetPlan(seed=seed + 10_000, **fleet), (), 1), (), ())
    patterns = now(synthesize(FleetPlan(seed=seed, **fleet), troubles, 2))
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before if baseline else ())


@seeds
@pytest.mark.parametrize("baseline", [True, False])
def test_a_process_that_takes_the_cores_of_one_host_is_named_with_its_workers(seed: int, baseline: bool) -> None:
    verdict = verdict_on(
        [BusyHost((4, 5, 6, 7), 1.8)], seed, lambda all_: beside(all_, ["node-1"], (BURNER,)), baseline=baseline
    )
    found = verdict.cause
    assert found is not None
    assert (found.cause, found.workers, found.hosts) == ("sibling-process", (4, 5, 6, 7), ("node-1",)), verdict.summary
    text = " ".join(found.evidence)
    assert "python (serve.py) (pid 777) uses 6.0 of 8 cores" in text and "dockerd" not in text
    assert "pid 777" in verdict.summary and "node-1" in verdict.summary
    assert [one.cause for one in verdict.findings if one.role == "cause"] == ["sibling-process"]


@seeds
def test_a_process_as_busy_on_every_host_is_not_why_one_of_them_is_slow(seed: int) -> None:
    verdict = verdict_on(
        [BusyHost((4, 5, 6, 7), 1.8)], seed, lambda all_: beside(all_, ["node-0", "node-1"], (BURNER,))
    )
    assert verdict.cause is not None and verdict.cause.cause == "cpu-contention"
    assert "777" not in verdict.summary


@seeds
@pytest.mark.parametrize("fact", ["stopped", "throttled"])
def test_processes_that_were_stopped_or_throttled_are_not_blamed_on_neighbors(seed: int, fact: str) -> None:
    verdict = verdict_on(
        [SlowCompute((4, 5, 6, 7), 1.8, fact)], seed, lambda all_: beside(all_, ["node-1"], (BURNER,), host_busy=0.95)
    )
    assert verdict.cause is not None and verdict.cause.cause == "compute-slow", verdict.summary


@seeds
@pytest.mark.parametrize("purpose", ["manual", "slow"])
def test_a_busy_process_beside_a_healthy_job_is_no_cause(seed: int, purpose: str) -> None:
    verdict = verdict_on([], seed, lambda all_: beside(all_, ["node-1"], (BURNER,), host_busy=0.9), purpose=purpose)
    assert verdict.cause is None, verdict.summary


ONE_HOST = {"workers": 4, "per_host": 4, "cores": 4}


@seeds
def test_a_job_on_one_host_that_got_slower_for_all_names_what_came_since(seed: int) -> None:
    verdict = verdict_on(
        [BusyHost((0, 1, 2, 3), 1.6)],
        seed,
        lambda all_: beside(all_, ["node-0"], (BURNER,), host_busy=0.99),
        **ONE_HOST,
    )
    found = verdict.cause
    assert found is not None and found.cause == "sibling-process", verdict.summary
    assert (found.scope, found.workers) == ("all", (0, 1, 2, 3))
    assert "pid 777" in verdict.summary
    assert found.gain is not None and found.gain > 0.15


@seeds
def test_steal_is_a_neighbor_without_a_name(seed: int) -> None:
    verdict = verdict_on(
        [SlowCompute((4, 5, 6, 7), 1.8, "none")], seed, lambda all_: beside(all_, ["node-1"], (), steal=0.4)
    )
    assert verdict.cause is not None and verdict.cause.cause == "sibling-process", verdict.summary
    assert "virtual machine" in verdict.summary


@seeds
def test_processes_that_cannot_be_seen_count_by_what_the_cores_did(seed: int) -> None:
    now = lambda all_: beside(all_, ["node-1"], (), cores_unseen=5.0, host_busy=0.97)  # noqa: E731
    verdict = verdict_on([BusyHost((4, 5, 6, 7), 1.8)], seed, now)
    assert verdict.cause is not None and verdict.cause.cause == "sibling-process", verdict.summary
    assert "cannot be seen" in verdict.summary


# --- devices ---


def on_device(patterns: Sequence[WorkerPattern], workers: Sequence[int], utilization: float) -> list[WorkerPattern]:
    changed = beside(patterns, (), ())
    for at in workers:
        there = Neighbor(name="infer", pid=900 + at, device=f"cuda:{at % 8}", device_utilization=utilization)
        changed[at] = msgspec.structs.replace(changed[at], neighbors=(there, DAEMON))
    return changed


@seeds
def test_processes_on_a_slow_workers_device_are_named(seed: int) -> None:
    """EROICA, section 6.3: inference processes on the same host took part of the device."""
    verdict = verdict_on(
        [SlowCompute((3,), 1.4, "none")], seed, lambda all_: on_device(all_, [3], 0.35), accelerator=True
    )
    found = verdict.cause
    assert found is not None and (found.cause, found.workers) == ("sibling-process", (3,)), verdict.summary
    assert "infer (pid 903)" in " ".join(found.evidence)
