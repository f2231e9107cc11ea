"""Workers that get more data through all-to-alls than their peers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.verdict import Finding
from eroica.pipeline import analyze
from support import FleetPlan, SlowCompute, synthesize, synthesize_window


def routed(patterns: list[WorkerPattern], times: float, *, sizes: bool = True) -> list[WorkerPattern]:
    """Everybody sends in all-to-alls, worker 2 so many times as much."""
    count = 40
    for rank, own in enumerate(patterns):
        size = np.full(count, 1000 * (times if rank == 2 else 1) if sizes else 0, dtype=np.int64)
        record = CollectiveRecord(
            group="experts",
            kind="all_to_all",
            paired_by="sequence",
            executions=count,
            sequence=encode_series(np.arange(count, dtype=np.int64)),
            iteration=encode_series(np.repeat(np.arange(count // 2, dtype=np.int32), 2)),
            duration_us=encode_series(np.full(count, 50, dtype=np.float32)),
            critical_us=encode_series(np.zeros(count, dtype=np.float32)),
            elements=encode_series(size),
        )
        patterns[rank] = msgspec.structs.replace(own, collectives=(*own.collectives, record))
    return patterns


def judge(seed: int, now: float, then: float | None, slower: float = 1.8, *, sizes: bool = True) -> tuple[Finding, str]:
    plan = {"workers": 4, "per_host": 4, "accelerator": True, "iterations": 20, "seed": seed}
    past = routed(synthesize(FleetPlan(**plan), (), 1), then) if then is not None else []
    trouble = SlowCompute((2,), slower, "nothing_of_note")
    patterns = routed(synthesize(FleetPlan(**plan, draw=1), [trouble], 2), now, sizes=sizes)
    verdict = analyze("job", synthesize_window(patterns, "slow", past), patterns, past)
    (cause,) = [finding for finding in verdict.findings if finding.role == "cause"]
    assert cause.workers == (2,)
    return cause, verdict.summary


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("then", [None, 1.0, 1.1])
def test_who_handles_more_data_than_its_peers_takes_longer_for_that(seed: int, then: float | None) -> None:
    cause, summary = judge(seed, 1.9, then)
    assert cause.cause == "load-imbalance"
    assert summary.startswith("Worker 2 handles 1.9 times as much data in all-to-alls as the peers")
    assert "experts" in cause.next_step


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("now", "then", "slower", "sizes"),
    [(1.0, 1.0, 1.8, True), (1.9, 1.8, 1.8, True), (1.4, 1.0, 3.0, True), (1.9, 1.0, 1.8, False)],
    ids=["as much as they", "it always was so", "far slower than that", "sizes are unknown"],
)
def test_what_data_do_not_account_for_stays_what_it_is(
    seed: int, now: float, then: float, slower: float, sizes: bool
) -> None:
    assert judge(seed, now, then, slower, sizes=sizes)[0].cause == "compute-slow"
