"""What the insights rest on: which run named whom for what, once for each run; and what chance alone does as often.

A busy host is named often because it takes part in much. So each run counts with its own probability: where 3 of 100
hosts were named, chance names any one of them with 0.03; where the job has one host, it says nothing. Sums are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from eroica_fleet.database import culprits, findings, run_hosts, runs
from eroica_fleet.tenants import Caller


def at_least(successes: int, probabilities: Sequence[float]) -> float:
    """Probability of so many successes or more in independent trials of different probabilities (Poisson binomial).

    Args:
        successes: 0 or more.
        probabilities: Of each trial, 0-1. float [N].

    Returns:
        The exact sum, 0-1; it takes N times `successes` steps.
    """
    if successes <= 0:
        return 1.0
    if successes > len(probabilities):
        return 0.0
    exactly = np.zeros(successes)  # of 0, 1, … successes - 1 successes so far
    exactly[0], reached = 1.0, 0.0
    for probability in probabilities:
        reached += float(exactly[-1]) * probability  # who gets there, stays there
        moved = exactly[:-1] * probability
        exactly *= 1 - probability
        exactly[1:] += moved
    return min(1.0, reached)


#: Findings that are less sure count for nothing here.
SURE = 0.5


class Life(NamedTuple):
    """A run from its start until it was last heard of, seconds since 1970.

    Attributes:
        devices: On each of its hosts, at least 1.
    """

    job: str
    began: float
    heard: float
    devices: float = 1.0


class Naming(NamedTuple):
    """A run named a host.

    Attributes:
        devices: The host's devices that were named; empty where only the host is known.
        causes: What for.
        at: When first.
        last: When last.
    """

    run: int
    host: str
    devices: frozenset[str]
    causes: frozenset[str]
    at: float
    last: float


class Onset(NamedTuple):
    """A cause was seen in a run for the first time.

    Attributes:
        gain: Of the iteration, the largest that was found.
        last: When it was seen last.
    """

    run: int
    cause: str
    function: str
    at: float
    last: float
    gain: float


def lives(connection: sa.Connection, caller: Caller, since: float) -> dict[int, Life]:
    """Runs that were heard of since then."""
    question = sa.select(runs.c.id, runs.c.job, runs.c.began_at, runs.c.heard_at, runs.c.workers, runs.c.hosts)
    rows = connection.execute(question.where(caller.sees(runs), runs.c.heard_at >= since))
    return {
        row.id: Life(row.job, row.began_at, max(row.heard_at, row.began_at), max(1.0, row.workers / max(row.hosts, 1)))
        for row in rows
    }


def namings(connection: sa.Connection, caller: Caller, since: float) -> list[Naming]:
    """Which run named which host since then.

    A run's final verdict says once more what its windows found: it dates nothing where one of them named the host,
    however long ago.
    """
    is_final = (findings.c.window_id == 0).label("is_final")
    names = culprits.c.run_id, culprits.c.host, culprits.c.device, findings.c.cause, is_final
    judged_at = culprits.c.judged_at
    rows = connection.execute(
        sa.select(*names, sa.func.min(judged_at).label("first"), sa.func.max(judged_at).label("last"))
        .join(findings, findings.c.id == culprits.c.finding_id)
        .where(caller.sees(culprits), _of_runs_since(caller, since), findings.c.confidence >= SURE)
        .group_by(*names)
    )
    devices: dict[tuple[int, str], set[str]] = defaultdict(set)
    causes: dict[tuple[int, str], set[str]] = defaultdict(set)
    times: dict[tuple[int, str], list[float]] = defaultdict(list)
    finals: dict[tuple[int, str], list[float]] = defaultdict(list)
    for run, host, device, cause, final, first, last in rows:
        causes[run, host].add(cause)
        (finals if final else times)[run, host] += (first, last)
        if device:
            devices[run, host].add(device)
    found = []
    for (run, host), what in causes.items():
        dates = times.get((run, host)) or finals[run, host]
        if max(dates) < since:
            continue
        found.append(Naming(run, host, frozenset(devices[run, host]), frozenset(what), min(dates), max(dates)))
    return found


def _of_runs_since(caller: Caller, since: float) -> sa.ColumnElement[bool]:
    """All findings of the runs that have one of since then."""
    recent = sa.select(findings.c.run_id).where(caller.sees(findings), findings.c.judged_at >= since)
    return findings.c.run_id.in_(recent)


def onsets(connection: sa.Connection, caller: Caller, since: float) -> list[Onset]:
    """Which cause was seen when, in the runs that have a finding since then; what one had before is among them."""
    rows = connection.execute(
        sa.select(
            findings.c.run_id,
            findings.c.cause,
            findings.c.function,
            sa.func.min(findings.c.judged_at).label("at"),
            sa.func.max(findings.c.judged_at).label("last"),
            sa.func.max(findings.c.gain).label("gain"),
        )
        .where(_of_runs_since(caller, since), findings.c.confidence >= SURE)
        .group_by(findings.c.run_id, findings.c.cause, findings.c.function)
    )
    return [Onset(row.run_id, row.cause, row.function, row.at, row.last, row.gain or 0.0) for row in rows]


def hosts_of(connection: sa.Connection, caller: Caller, run_ids: set[int]) -> dict[int, set[str]]:
    """Run -> hosts that took part."""
    found: dict[int, set[str]] = defaultdict(set)
    ids = sorted(run_ids)
    for at in range(0, len(ids), 1000):
        question = sa.select(run_hosts.c.run_id, run_hosts.c.host)
        for row in connection.execute(
            question.where(caller.sees(run_hosts), run_hosts.c.run_id.in_(ids[at : at + 1000]))
        ):
            found[row.run_id].add(row.host)
    return found
