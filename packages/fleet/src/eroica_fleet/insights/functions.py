"""Functions that are slow in several jobs: a library's release, a data format, a habit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from eroica_fleet.insights.evidence import Life, Onset

_FEWEST_JOBS = 2


class FunctionFact(msgspec.Struct, frozen=True, kw_only=True):
    """A function that was a cause in several jobs.

    Attributes:
        jobs: Different jobs in which it was.
        runs: Runs in which it was.
        of_jobs: Jobs that were heard of in the same time.
        gain: Median share of the iteration that it costs.
        first_at: When it was seen first.
        names: Some of the jobs.
    """

    function: str
    cause: str
    jobs: int
    runs: int
    of_jobs: int
    gain: float
    first_at: float
    last_at: float
    names: list[str]


def function_facts(
    onsets: Sequence[Onset], lives: Mapping[int, Life], fewest: int = _FEWEST_JOBS
) -> list[FunctionFact]:
    """Functions that were a cause in at least so many jobs, those in most jobs first."""
    of_function: dict[tuple[str, str], list[Onset]] = defaultdict(list)
    for onset in onsets:
        if onset.run in lives and onset.function:
            of_function[onset.function, onset.cause].append(onset)
    of_jobs = len({life.job for life in lives.values()})
    facts = []
    for (function, cause), found in of_function.items():
        names = sorted({lives[onset.run].job for onset in found})
        if len(names) < fewest:
            continue
        facts.append(
            FunctionFact(
                function=function,
                cause=cause,
                jobs=len(names),
                runs=len({onset.run for onset in found}),
                of_jobs=of_jobs,
                gain=round(median(onset.gain for onset in found), 4),
                first_at=min(onset.at for onset in found),
                last_at=max(onset.last for onset in found),
                names=names[:10],
            )
        )
    return sorted(facts, key=lambda fact: (-fact.jobs, -fact.gain, fact.function))
