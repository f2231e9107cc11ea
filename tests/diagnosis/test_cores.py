"""Cores that a job may use, and what follows from there being few of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from eroica.diagnosis.helpers import cores_of_host
from eroica.model.pattern import WorkerPattern
from support import FleetPlan, synthesize


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
    assert found == (allowed, pytest.approx(busy))


def test_what_nobody_looked_at_is_unknown() -> None:
    found = cores_of_host([worker("0-1")])
    assert math.isnan(found.allowed) and math.isnan(found.busy)
