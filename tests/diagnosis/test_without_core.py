"""A worker without a core: late by what all of its functions take longer together, though none stands out."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, synthesize, synthesize_window
from support.fleet import Draft

seeds = pytest.mark.parametrize("seed", range(4))
LATE = 1


@dataclass(frozen=True)
class Interrupted:
    """All that one worker does takes `factor` times as long."""

    factor: float

    def apply(self, draft: Draft) -> None:
        for key in draft.time_us:
            draft.time_us[key][LATE] *= self.factor


def queueing(patterns: list[WorkerPattern], late: float, others: float = 0.15) -> list[WorkerPattern]:
    """Training threads wait for a core this share of the time."""
    return [
        msgspec.structs.replace(
            one, host_facts={**one.host_facts, "run_queue_wait": late if at == LATE else others, "host_busy": 0.7}
        )
        for at, one in enumerate(patterns)
    ]


def with_child(pattern: WorkerPattern, cores: float) -> WorkerPattern:
    """It has started a process that uses so many cores."""
    key = FunctionKey(kind="python", name="pack", stack=("main (pack.py:3)", "pack (pack.py:9)"), thread="child")
    child = FunctionPattern(
        key=key, beta=0.0, mu=cores, resource="cpu", resource_samples=200, total_s=pattern.duration_s, count=1
    )
    return msgspec.structs.replace(pattern, functions=(*pattern.functions, child))


def judged(seed: int, factor: float = 1.22, late: float = 0.34, others: float = 0.15, child: float = 0.0) -> Verdict:
    """In a job that was healthy before, where threads waited for a core 12 % of the time."""
    past = queueing(synthesize(FleetPlan(seed=seed, unevenness=0.02), (), 1), 0.12, 0.12)
    now = synthesize(FleetPlan(seed=seed, draw=1, unevenness=0.02), (Interrupted(factor),), 2)
    now = queueing(now, late, others)
    now[LATE] = with_child(now[LATE], child)
    return analyze("job", synthesize_window(now, "slow", past), now, past)


@seeds
@pytest.mark.parametrize(
    ("factor", "late", "others"),
    [
        (1.22, 0.17, 0.15),  # it has its core
        (1.22, 0.34, 0.32),  # as little as anybody else
        (1.0, 0.34, 0.15),  # nobody waits for it
        (2.2, 0.24, 0.12),  # it is later than that accounts for
    ],
)
def test_otherwise_nobody_is(seed: int, factor: float, late: float, others: float) -> None:
    verdict = judged(seed, factor, late, others)
    assert all(one.cause != "cpu-contention" for one in verdict.findings), verdict.summary
