"""Workers in plain view whose delay reaches the others through somebody who did not report, or a root nobody names."""

from __future__ import annotations

import numpy as np
import pytest

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import synthesize_window
from support.grouped import GroupedFleet, Meeting, Work, neighbors_of, strided

WORKERS, SHARD, ITERATIONS = 12, 4, 12
seeds = pytest.mark.parametrize("seed", range(3))


def mesh(seed: int, late_ms: dict[int, float]) -> list[WorkerPattern]:
    """Shards of four workers that gather, and replicas of three that reduce; 60 ms of work, `late_ms` more on some."""
    noise = np.random.default_rng(seed)
    work_WI = 60e3 * np.exp(noise.normal(0, 0.01, (WORKERS, ITERATIONS)))
    for worker, ms in late_ms.items():
        work_WI[worker] += ms * 1e3
    fleet = GroupedFleet(workers=WORKERS, iterations=ITERATIONS, seed=seed, has_ends=True, per_host=4)
    everyone = np.arange(WORKERS)
    key = FunctionKey(kind="compute", name="gemm", phase="forward", thread="device")
    flat = np.full(WORKERS, 0.7)
    fleet.works = [Work(key=key, time_us=work_WI, of=everyone, mu=flat, sigma=flat / 50, count=40)]
    for grouping, kind, phase in (
        (neighbors_of(WORKERS, SHARD, "mesh_shard"), "all_gather", "forward"),
        (strided(WORKERS, SHARD, "mesh_replicate"), "all_reduce", "backward"),
    ):
        fleet.meetings.append(
            Meeting(
                grouping=grouping,
                name=f"nccl:{kind}",
                kind=kind,
                phase=phase,  # type: ignore[arg-type]
                times=2,
                transfer_us=np.full((grouping.groups, ITERATIONS), 1e3),
                mu=flat,
                sigma=flat / 50,
                elements=1 << 20,
            )
        )
    return fleet.synthesize()


def without(missing: int, late: int, seed: int) -> Verdict:
    now = [one for one in mesh(seed, {late: 20}) if one.worker.global_rank != missing]
    return analyze("job", synthesize_window(now), now, expected_workers=WORKERS)


@seeds
@pytest.mark.parametrize("missing", [4, 1, 9, 10], ids=["of its shard", "of its replicas", "replica too", "neither"])
def test_a_late_worker_is_found_whoever_else_is_missing(missing: int, seed: int) -> None:
    verdict = without(missing, 5, seed)
    assert verdict.verdict == "slow", verdict.summary
    assert verdict.cause is not None
    assert verdict.cause.workers == (5,)
    assert verdict.cause.gain == pytest.approx(20 / 82, abs=0.05)


@seeds
def test_nobody_is_blamed_in_the_collectives_of_somebody_missing(seed: int) -> None:
    """Workers 1 and 9 reduce with worker 5 and may be blamed; in the shard of workers 4 to 7 nobody may."""
    verdict = without(4, 5, seed)
    assert verdict.waits is not None
    assert any("members of process group" in note and "nobody is blamed" in note for note in verdict.coverage.notes)
    in_shard = {(edge.waiter, edge.on) for edge in verdict.waits.edges if {edge.waiter, edge.on} <= {5, 6, 7}}
    assert in_shard == set()
    assert verdict.waits.withheld_ms >= 2 * 19  # what workers 6 and 7 wait there


@seeds
@pytest.mark.parametrize("missing", [4, 6])
def test_what_hides_behind_a_later_worker_gains_nothing_though_somebody_is_missing(missing: int, seed: int) -> None:
    """Worker 5 is late, and all in the first shard are later still."""
    late = {5: 20.0, **dict.fromkeys(range(4), 45.0)}
    now = [one for one in mesh(seed, late) if one.worker.global_rank != missing]
    verdict = analyze("job", synthesize_window(now), now, expected_workers=WORKERS)
    assert not [one for one in verdict.findings if one.role == "cause" and one.workers == (5,)], verdict.summary


@seeds
def test_a_healthy_mesh_is_healthy_with_somebody_missing(seed: int) -> None:
    now = [one for one in mesh(seed, {}) if one.worker.global_rank != 4]
    assert analyze("job", synthesize_window(now), now, expected_workers=WORKERS).verdict == "healthy"
