"""Cores that a job may use, and what follows from there being few of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from eroica.diagnosis.view import cores_of_host
from eroica.model.pattern import WorkerPattern
from eroica.pipeline import analyze
from support import BusyHost, FleetPlan, synthesize, synthesize_window


def worker(affinity: str | None, **facts: float) -> WorkerPattern:
    (plain,) = synthesize(FleetPlan(workers=1))
    return msgspec.structs.replace(plain, setup={} if affinity is None else {"affinity": affinity}, host_facts=facts)


@pytest.mark.parametrize(
    ("affinities", "allowed", "busy"),
    [
        (("0-63", "0-63"), 64, 0.1),
        (("0-1", "0-1"), 2, 0.95),  # both in one cpuset
        (("0-3", "4-7"), 8, 1.9 / 8),  # each has cores of its own
        (("0-1", None), 64, 0.1),  # nobody knows of one of them
        (("0-1", "all"), 64, 0.1),
        (("0-99999999999999999999", "0"), 64, 0.1),  # damaged
    ],
)
def test_what_the_workers_may_use_together(affinities: Sequence[str | None], allowed: float, busy: float) -> None:
    found = cores_of_host(worker(one, cpu_count=64.0, host_busy=0.1, cores_job=1.9) for one in affinities)
    assert (found.total, found.allowed, found.busy) == (64, allowed, pytest.approx(busy))


def test_what_nobody_looked_at_is_unknown() -> None:
    found = cores_of_host([worker("0-1")])
    assert math.isnan(found.total) and math.isnan(found.allowed) and math.isnan(found.busy)


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_share_too_few_cores_of_a_large_host_are_not_told_apart_by_their_luck(seed: int) -> None:
    """Four workers in a cpuset of two cores: who gets one is luck for seconds."""

    def bound(patterns: Sequence[WorkerPattern], affinity: str) -> list[WorkerPattern]:
        facts = {"cpu_count": 64.0, "host_busy": 0.05}
        return [
            msgspec.structs.replace(one, setup={"affinity": affinity}, host_facts={**one.host_facts, **facts})
            for one in patterns
        ]

    for affinity, accused in (("0-63", True), ("0-1", False)):
        patterns = bound(synthesize(FleetPlan(seed=seed), [BusyHost((2,), 1.5)], 2), affinity)
        verdict = analyze("job", synthesize_window(patterns, "manual"), patterns)
        found = [one.workers for one in verdict.findings if one.role == "cause" and one.cause == "cpu-contention"]
        assert bool(found) == accused, verdict.summary
