"""Threads and processes of the job's own: another thread has the lock, or loader processes have the cores."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from eroica.diagnosis.helpers import cores_of_host
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import BusyHost, FleetPlan, SlowCompute, synthesize, synthesize_window

COUNTING = ("run (threading.py:980)", "count (project/stats.py:12)")
LOADING = ("_worker_loop (torch/utils/data/_utils/worker.py:240)", "parse (project/dataset.py:90)")
PACKING = ("<module> (project/publish.py:1)", "pack (project/snapshots.py:8)")
seeds = pytest.mark.parametrize("seed", range(3))


def row(stack: tuple[str, ...], thread: str, seconds: float, use: float) -> FunctionPattern:
    """A Python function that is no part of the training thread."""
    key = FunctionKey(kind="python", name=stack[-1].split(" (")[0], stack=stack, phase="input", thread=thread)  # type: ignore[arg-type]
    return FunctionPattern(
        key=key, beta=0.0, mu=use, resource="cpu", resource_samples=200, total_s=seconds, count=1, max_s=seconds
    )


def with_thread(patterns: Sequence[WorkerPattern], workers: Sequence[int], use: float) -> list[WorkerPattern]:
    """The patterns with another Python thread in some workers, all the time."""
    return [
        msgspec.structs.replace(one, functions=(*one.functions, row(COUNTING, "background", one.duration_s, use)))
        if one.worker.global_rank in workers
        else one
        for one in patterns
    ]


def slowed(workers: tuple[int, ...], seed: int, use: float, purpose: str = "manual") -> Verdict:
    before = synthesize(FleetPlan(workers=4, seed=seed + 100), (), 1)
    trouble = SlowCompute(workers, 5.0, fact="nothing_of_note")
    patterns = with_thread(synthesize(FleetPlan(workers=4, seed=seed), [trouble], 2), workers, use)
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before)  # type: ignore[arg-type]


@seeds
def test_a_thread_that_computes_in_python_is_named_for_all_that_gets_slower(seed: int) -> None:
    verdict = slowed((2,), seed, use=0.9)
    found = verdict.cause
    assert found is not None
    assert (found.cause, found.workers, found.function.name) == ("python-on-critical-path", (2,), "count")
    assert found.resource is not None and found.resource.name == "interpreter lock"
    assert "holds Python's interpreter lock" in verdict.summary and "stats.py:12" in verdict.summary
    assert [one.cause for one in verdict.findings if one.role == "cause"] == ["python-on-critical-path"]
    assert "another process" in found.next_step


@seeds
def test_a_thread_that_only_waits_is_not_to_blame(seed: int) -> None:
    found = slowed((2,), seed, use=0.02).cause
    assert found is not None and found.cause == "compute-slow"


@seeds
def test_such_a_thread_on_every_worker_is_seen_against_the_healthy_window(seed: int) -> None:
    found = slowed((0, 1, 2, 3), seed, use=0.9, purpose="slow").cause
    assert found is not None
    assert (found.cause, found.scope, found.function.name) == ("python-on-critical-path", "all", "count")


def busy_loaders(patterns: Sequence[WorkerPattern], used_s: float, queue: float, busy: float) -> list[WorkerPattern]:
    """The patterns on full hosts whose loader processes compute `used_s` per iteration."""
    changed = []
    for one in patterns:
        iterations = one.last_iteration - one.first_iteration
        total = 1.25 * used_s * iterations
        training_s = sum(row.critical_s * row.mu for row in one.functions if row.key.thread == "training")
        cores = (training_s + used_s * iterations) / one.duration_s
        facts = {"run_queue_wait": queue, "host_busy": busy, "cores_worker": cores, "cpu_count": 4.0}
        more = row(LOADING, "loader", total, 0.8)
        changed.append(
            msgspec.structs.replace(one, functions=(*one.functions, more), host_facts={**one.host_facts, **facts})
        )
    return changed


def crowded(seed: int, used_s: float = 0.05, queue: float = 0.6, busy: float = 0.99) -> Verdict:
    before = busy_loaders(synthesize(FleetPlan(workers=4, seed=seed + 100, loader_workers=4), (), 1), 0.002, 0.1, 0.6)
    plan = FleetPlan(workers=4, seed=seed, loader_workers=4)
    patterns = busy_loaders(synthesize(plan, [BusyHost((0, 1, 2, 3), 2.0)], 2), used_s, queue, busy)
    return analyze("job", synthesize_window(patterns, "slow", before), patterns, before)


@seeds
def test_loader_processes_that_fill_the_host_are_named_and_not_the_operators_that_get_slower(seed: int) -> None:
    verdict = crowded(seed)
    found = verdict.cause
    assert found is not None
    assert (found.cause, found.scope, found.function.name) == ("cpu-contention", "all", "parse"), verdict.summary
    assert [one.cause for one in verdict.findings if one.role == "cause"] == ["cpu-contention"]
    assert "num_workers" in found.next_step
    assert found.gain is not None and 0.3 < found.gain < 0.6


@seeds
@pytest.mark.parametrize(("used_s", "queue", "busy"), [(0.002, 0.6, 0.99), (0.05, 0.1, 0.99), (0.05, 0.6, 0.5)])
def test_without_any_of_the_three_measurements_they_are_not(
    seed: int, used_s: float, queue: float, busy: float
) -> None:
    verdict = crowded(seed, used_s, queue, busy)
    assert all("data loaders' own processes" not in text for text in (verdict.summary, *verdict.coverage.notes))


# --- processes that the job has started itself ---


def with_children(patterns: Sequence[WorkerPattern], used_s: float, queue: float) -> list[WorkerPattern]:
    """The patterns on a full host; worker 0 has started a process that computes `used_s` per iteration and worker."""
    training = [
        sum(row.critical_s * row.mu for row in one.functions if row.key.thread == "training") / one.duration_s
        for one in patterns
    ]
    changed = []
    for one, cores in zip(patterns, training, strict=True):
        iterations = one.last_iteration - one.first_iteration
        job = sum(training) + 4 * used_s * iterations / one.duration_s
        facts = {"run_queue_wait": queue, "host_busy": 0.99, "cores_worker": cores, "cores_job": job, "cpu_count": 4.0}
        more = (row(PACKING, "child", 5 * used_s * iterations, 0.8),) if one.worker.global_rank == 0 else ()
        changed.append(
            msgspec.structs.replace(one, functions=(*one.functions, *more), host_facts={**one.host_facts, **facts})
        )
    return changed


@seeds
@pytest.mark.parametrize(("used_s", "named"), [(0.05, True), (0.002, False)])
def test_processes_that_the_job_has_started_are_named_where_they_take_the_cores(
    seed: int, used_s: float, named: bool
) -> None:
    before = with_children(synthesize(FleetPlan(workers=4, seed=seed + 100), (), 1), 0.002, 0.1)
    slow = synthesize(FleetPlan(workers=4, seed=seed), [BusyHost((0, 1, 2, 3), 2.0)], 2)
    patterns = with_children(slow, used_s, 0.6)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert ("Processes that the job has started itself" in verdict.summary) == named, verdict.summary
    if named:
        assert verdict.cause is not None
        assert (verdict.cause.cause, verdict.cause.function.name) == ("cpu-contention", "pack")
        assert "os.nice" in verdict.cause.next_step


def worker(affinity: str, cores: str, **facts: float) -> WorkerPattern:
    (plain,) = synthesize(FleetPlan(workers=1))
    setup = {"affinity": affinity, "affinity_cores": cores}
    return msgspec.structs.replace(plain, setup=setup if affinity else {}, host_facts=facts)


@pytest.mark.parametrize(
    ("affinities", "allowed", "busy"),
    [
        ((("0-63", "64"), ("0-63", "64")), 64, 0.1),
        ((("0-1", "2"), ("0-1", "2")), 2, 0.95),  # both in one cpuset
        ((("0-3", "4"), ("4-7", "4")), 8, 1.9 / 8),  # each has cores of its own
        ((("0-1", "2"), ("", "")), 64, 0.1),  # nobody knows of one of them
        ((("0-1", "many"), ("0-1", "many")), 64, 0.1),  # damaged
    ],
)
def test_what_the_workers_may_use_together(affinities: Sequence[tuple[str, str]], allowed: float, busy: float) -> None:
    found = cores_of_host(worker(*one, cpu_count=64.0, host_busy=0.1, cores_job=1.9) for one in affinities)
    assert found == (allowed, pytest.approx(busy))
