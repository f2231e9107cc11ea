"""Recorded workers made of arrival times: everybody leaves a collective when the last has come.

Array suffixes: M members of a group, K executions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import CollectiveRecord, FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.model.worker import ProcessGroup, Worker

Floats = NDArray[np.float64]
ITERATION_US = 20_000.0


def recorded_collective(
    ends: Floats, durations: Floats, iteration: Sequence[int] | None = None, **changes: object
) -> CollectiveRecord:
    """What one worker's trace says of a group's collectives, by its own clock.

    Args:
        ends: End of each execution since the start of the window, microseconds. float64 [K].
        durations: Microseconds. float64 [K].
        iteration: Iteration in which each one ends, by default the first.
        changes: Other fields of the record.
    """
    count = len(ends)
    which = np.zeros(count) if iteration is None else np.asarray(iteration)
    plain: dict[str, object] = {
        "group": "0",
        "kind": "all_reduce",
        "paired_by": "order",
        "executions": count,
        "sequence": encode_series(np.arange(count, dtype=np.int64)),
        "iteration": encode_series(which.astype(np.int32)),
        "duration_us": encode_series(durations.astype(np.float32), exact=True),
        "critical_us": encode_series(durations.astype(np.float32), exact=True),
        "end_us": encode_series(ends),
    }
    return CollectiveRecord(**{**plain, **changes})  # type: ignore[arg-type]


def recorded_worker(
    rank: int,
    records: Sequence[CollectiveRecord],
    *,
    iterations: int = 1,
    world: int = 4,
    groups: Sequence[ProcessGroup] | None = None,
    rows: Sequence[tuple[FunctionKey, float]] = (),
) -> WorkerPattern:
    """A worker of a job with an accelerator.

    Args:
        rank: Its global rank.
        records: Its collectives, critical all through.
        iterations: Recorded.
        world: Workers of the job.
        groups: Process groups it knows; by default the one of everybody.
        rows: Functions with their critical time in each iteration, microseconds.
    """
    window_us = iterations * ITERATION_US
    waited_us = sum(_per_iteration(record, iterations) for record in records)
    collectives = [(_collective_key(record), _per_iteration(record, iterations)) for record in records]
    everybody = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(world)), backend="nccl")
    return WorkerPattern(
        worker=Worker(global_rank=rank, world_size=world, device="cuda:0"),
        window_id=1,
        first_iteration=0,
        last_iteration=iterations,
        duration_s=window_us / 1e6,
        iteration_us=encode_series(np.full(iterations, ITERATION_US, dtype=np.float32), exact=True),
        wait_us=encode_series(np.full(iterations, waited_us, dtype=np.float32), exact=True),
        functions=tuple(_row(key, time_us, iterations, window_us) for key, time_us in (*rows, *collectives)),
        collectives=tuple(records),
        process_groups=(everybody,) if groups is None else tuple(groups),
        has_accelerator=True,
        found_by="profiler steps",
    )


def _collective_key(record: CollectiveRecord) -> FunctionKey:
    return FunctionKey(kind="collective", name=f"nccl:{record.kind}", thread="collective", group=record.group)


def _per_iteration(record: CollectiveRecord, iterations: int) -> float:
    return float(decode_series(record.critical_us, np.float32).sum()) / iterations


def _row(key: FunctionKey, time_us: float, iterations: int, window_us: float) -> FunctionPattern:
    return FunctionPattern(
        key=key,
        beta=time_us * iterations / window_us,
        critical_s=time_us * iterations / 1e6,
        total_s=time_us * iterations / 1e6,
        count=10 * iterations,
        active_iterations=iterations,
        per_iteration_us=encode_series(np.full(iterations, time_us, dtype=np.float32), exact=True),
    )


def meet(arrival_MK: Floats, transfer_us: float = 10.0) -> tuple[Floats, Floats]:
    """Ends and durations of executions that end `transfer_us` after the last arrival. float64 [M, K] each."""
    end_MK = np.broadcast_to(arrival_MK.max(axis=0) + transfer_us, arrival_MK.shape)
    return end_MK, end_MK - arrival_MK
