"""Verdicts of every kind, for the tests of the views."""

from __future__ import annotations

import msgspec

from eroica.diagnosis.blocked import diagnose_blockage
from eroica.model.verdict import (
    Breakdown,
    BreakdownItem,
    Cost,
    Coverage,
    DurationSummary,
    Finding,
    FindingFunction,
    IterationTimes,
    PatternSummary,
    ResourceUse,
    Verdict,
    VerdictWindow,
)
from eroica.settings import Settings
from support.standstill import EMPTY_QUEUE, FULL_QUEUE, Standstill
from support.verdicts import plain


def _standing_still() -> Verdict:
    job = Standstill(4, hosts=2)
    job.wait((0, 1, 3))
    job.sit(2, EMPTY_QUEUE)
    job.add_thread(2, "prefetch", FULL_QUEUE)
    verdict = diagnose_blockage(job.blockage(), "demo", Settings())
    assert verdict is not None
    return msgspec.structs.replace(verdict, eroica_version="0.1.0", cost=Cost(trigger_to_verdict_s=3.4))


BLOCKED = _standing_still()

LOADER = Finding(
    order=1,
    role="cause",
    cause="slow-data-loading",
    function=FindingFunction(
        name="_read_block",
        kind="python",
        stack=(
            "main (train.py:150)",
            "__next__ (dataloader.py:7)",
            "__getitem__ (data.py:24)",
            "_read_block (data.py:28)",
        ),
    ),
    workers=(2,),
    scope="some",
    hosts=("node-1",),
    resource=ResourceUse(name="cpu", mean=0.02, peers_mean=0.61, unit="fraction of one core"),
    pattern=PatternSummary(
        beta=0.43, mu=0.02, sigma=0.01, peers={"beta": 0.0104, "mu": 0.6, "sigma": 0.1}, expected={"beta": (0.0, 0.01)}
    ),
    duration=DurationSummary(
        per_iteration_ms=41.2, peers_ms=0.31, mean_ms=5.1, count_per_iteration=8.0, peers_count=8.0
    ),
    gain=0.38,
    confidence=0.97,
    explains=(2,),
    evidence=(
        "worker 2 spends 41.2 ms of each iteration in its loader's next, its peers 0.3 ms",
        "the processor is idle meanwhile: 2 % of one core",
        "workers 0, 1 and 3 wait 39.8 ms longer in all_reduce, and worker 2 does not",
    ),
    next_step="Look at _read_block: it waits, it does not compute. Read ahead with loader workers, or from a disk.",
)

WAITING = Finding(
    order=2,
    role="symptom",
    cause="slow-data-loading",
    function=FindingFunction(name="gloo:all_reduce", kind="collective"),
    workers=(0, 1, 3),
    scope="some",
    hosts=("node-1",),
    duration=DurationSummary(per_iteration_ms=52.0, peers_ms=12.2),
)

SLOW = plain(
    "slow",
    "Worker 2's data loading (_read_block) makes all 4 workers wait 41 ms in each iteration.",
    eroica_version="0.1.0",
    job="demo",
    window=VerdictWindow(
        kind="iterations",
        first_iteration=412,
        last_iteration=462,
        duration_s=4.9,
        reason="mean of the last 50 iterations is 64 % above the best",
    ),
    iteration=IterationTimes(baseline_ms=58.3, current_ms=97.6),
    findings=(LOADER, WAITING),
    cost=Cost(
        window_stall_s=0.41,
        summarize_s=2.13,
        localize_s=0.02,
        raw_bytes=31_200_000,
        pattern_bytes=21_400,
        trigger_to_verdict_s=4.2,
    ),
)

ROTATING = plain(
    "slow",
    "Python's garbage collector stops another worker in every second iteration; all wait for it.",
    eroica_version="0.1.0",
    job="text-to-video",
    window=VerdictWindow(kind="iterations", first_iteration=900, last_iteration=960, duration_s=7.4),
    iteration=IterationTimes(current_ms=124.0),
    coverage=Coverage(
        workers_expected=1024,
        workers_reported=1016,
        missing=(17, 18, 19, 20, 21, 22, 23, 801),
        notes=(
            "worker 17: no pattern before the deadline",
            "stacks were sampled inside: ptrace is forbidden",
        ),
    ),
    findings=(
        Finding(
            order=1,
            role="cause",
            cause="garbage-collection",
            function=FindingFunction(name="garbage collection", kind="python"),
            workers=tuple(range(1016)),
            scope="rotating",
            hosts=tuple(f"node-{number}" for number in range(127)),
            duration=DurationSummary(per_iteration_ms=49.0, mean_ms=98.0, count_per_iteration=0.5),
            gain=0.4,
            confidence=0.9,
            evidence=("30 collections of generation 2 in 60 iterations, on 28 workers in turn",),
            next_step="Collect on all workers at the same iteration: gc.collect() every 200 iterations.",
        ),
    ),
    cost=Cost(window_stall_s=1.2, summarize_s=12.0, raw_bytes=3_100_000_000, pattern_bytes=30_000),
)

HEALTHY = plain(
    "healthy",
    "Healthy: iterations of 4 workers never got slower.",
    eroica_version="0.1.0",
    job="demo",
    window=VerdictWindow(kind="iterations", first_iteration=20, last_iteration=60, duration_s=4.0),
    iteration=IterationTimes(best_ms=98.0, baseline_ms=99.0, current_ms=100.0),
    breakdown=Breakdown(
        iteration_ms=100.0,
        shares={"forward": 0.4, "communication": 0.31, "waiting for peers": 0.001, "other": 0.289},
        items=(
            BreakdownItem(
                function=FindingFunction(name="gloo:broadcast", kind="collective", stack=("forward (net.py:8)",)),
                workers=(0, 1, 2, 3),
                phase="forward",
                caller="forward (net.py:8)",
                per_iteration_ms=31.2,
                most_gain=0.31,
            ),
        ),
    ),
)

UNDETERMINED = plain(
    "undetermined",
    "Iterations are 20 % slower, but only 1 of 4 workers could be read: no comparison is possible.",
    eroica_version="0.1.0",
    job="demo",
    window=VerdictWindow(kind="iterations", first_iteration=10, last_iteration=12, duration_s=0.2),
    iteration=IterationTimes(baseline_ms=0.5, current_ms=12_345.0),
    coverage=Coverage(workers_expected=4, workers_reported=1, missing=(1, 2, 3)),
)


def hostile(name: str) -> Verdict:
    """A verdict in which every text that a job can choose is this one."""
    function = FindingFunction(name=name, kind="python", stack=(name, name))
    cause = msgspec.structs.replace(
        LOADER, cause=name, function=function, hosts=(name,), evidence=(name,), next_step=name
    )
    symptom = msgspec.structs.replace(WAITING, function=function)
    coverage = msgspec.structs.replace(SLOW.coverage, notes=(name,))
    return msgspec.structs.replace(SLOW, job=name, summary=name, findings=(cause, symptom), coverage=coverage)
