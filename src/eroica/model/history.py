"""A job's iteration times from its first iteration on, and what happened when: for pictures and the job's end."""

from __future__ import annotations

from typing import Literal

import msgspec

MarkKind = Literal["trigger", "window", "baseline", "verdict", "blocked"]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job.

    Attributes:
        kind: A worker asked for a window; a window or the baseline window was open; a verdict; the job stood still.
        at_s: Seconds after the job's start.
        until_s: End of what lasts, else None.
        iteration: The job's iteration then; of a window its first one.
        last_iteration: Exclusive end of a window, else None.
        window_id: Which window, 0 for none.
        text: One clause for people: the reason, the verdict's sentence.
    """

    kind: MarkKind
    at_s: float
    until_s: float | None = None
    iteration: int = 0
    last_iteration: int | None = None
    window_id: int = 0
    text: str = ""


class IterationHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Iteration times of a job over its life, thinned to a bounded number of points.

    Attributes:
        job: Name of the job.
        began: When the collector began to count, seconds since 1970.
        at_s: End of each stretch, seconds after `began`, rising.
        iteration: The lowest iteration that every worker had completed then.
        mean_ms: Mean iteration in the stretch, over workers, milliseconds.
        slowest_ms: Of the worker with the longest mean in it.
        slowest_worker: Its global rank.
        marks: What happened, in order of time.

    The five columns have one value a stretch. Neighboring stretches are merged when there are too many: means are
    weighted by time, the slowest of both stays.
    """

    job: str
    began: float
    at_s: tuple[float, ...] = ()
    iteration: tuple[int, ...] = ()
    mean_ms: tuple[float, ...] = ()
    slowest_ms: tuple[float, ...] = ()
    slowest_worker: tuple[int, ...] = ()
    marks: tuple[Mark, ...] = ()
