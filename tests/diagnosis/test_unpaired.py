"""Workers in plain view whose delay reaches the others through somebody who did not report, or a root nobody names."""

from __future__ import annotations

import numpy as np
import pytest

from eroica.model.pattern import FunctionKey, WorkerPattern
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


@seeds
def test_a_healthy_mesh_is_healthy_with_somebody_missing(seed: int) -> None:
    now = [one for one in mesh(seed, {}) if one.worker.global_rank != 4]
    assert analyze("job", synthesize_window(now), now, expected_workers=WORKERS).verdict == "healthy"
