"""Cores that a job may use on each host: all there are, or those that its processes are bound to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from eroica.model.pattern import WorkerPattern

_MOST_RANGE = 4096
_LONGEST_PART = 16


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """The cores of one host.

    Attributes:
        total: Cores of the host; NaN if nobody looked.
        allowed: Cores that the job's workers there may use together; NaN if nobody knows.
        busy: Share of `allowed` that is in use, 0-1; NaN if nobody looked.
    """

    total: float
    allowed: float
    busy: float

    @property
    def idle(self) -> float:
        """Cores that the workers may use and nobody does."""
        return self.allowed * (1 - self.busy)


def cores_of_host(patterns: Iterable[WorkerPattern]) -> Cores:
    """Count the cores of one host that its workers may use: an affinity, a cpuset, or all.

    Where the workers may not use all, their cores are as busy as the job keeps them, or as the host if that is more.
    """
    here = list(patterns)
    facts = here[0].host_facts
    total, busy = facts.get("cpu_count", math.nan), facts.get("host_busy", math.nan)
    bound = bound_to(here)
    if not bound or not len(bound) < total:
        return Cores(total=total, allowed=total, busy=busy)
    used = min(facts.get("cores_job", math.nan) / len(bound), 1.0)
    return Cores(total=total, allowed=float(len(bound)), busy=used if math.isnan(busy) else max(used, busy))


def bound_to(patterns: Iterable[WorkerPattern]) -> frozenset[int]:
    """Unite the cores that some workers of a host may run on; none where one worker does not say."""
    told = [listed_cores(one.setup.get("affinity", "")) for one in patterns]
    return frozenset[int]().union(*told) if all(told) else frozenset()


@lru_cache(maxsize=4096)
def listed_cores(listed: str) -> frozenset[int]:
    """Read the cores of a list like "0-3,8"; none where it cannot be read."""
    found: set[int] = set()
    for part in filter(None, listed.split(",")):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or len(part) > _LONGEST_PART:
            return frozenset()
        found.update(range(int(first), min(int(last or first), int(first) + _MOST_RANGE) + 1))
    return frozenset(found)
