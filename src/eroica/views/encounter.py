"""One collective in which two workers met: what lays their timelines against each other.

Of the executions that both took part in in the shown iteration, the one whose duration differs most between them: there
one waited for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from eroica.errors import InputError
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import decode_series
from eroica.model.timeline import Timeline
from eroica.report.words import clean
from eroica.views.slices import read_slices

_POINT_TO_POINT = frozenset({"send", "recv"})
_MOST_SLICES = 20_000


class Encounter(NamedTuple):
    """Where two timelines are laid against each other.

    Attributes:
        end_ms: Of each worker, that moment after the start of its iteration.
        name: Of the collective, empty where they are laid against something else.
        says: One sentence for people.
        axis: Title of the axis where there is no collective.
    """

    end_ms: tuple[float, ...]
    name: str
    says: str
    axis: str = ""


class _Execution(NamedTuple):
    which: tuple[str, str, int]
    end_ms: float
    duration_ms: float


def find_encounter(patterns: Sequence[WorkerPattern], timelines: Sequence[Timeline]) -> Encounter:
    """Where these workers (one or two) met in the iteration that is shown.

    Args:
        patterns: Of each worker.
        timelines: Of each worker.
    """
    if len(patterns) < 2:
        return Encounter((0.0,) * len(patterns), "", "", "after the start of the iteration")
    for listed in (_recorded, _seen):
        own, other = (
            {one.which: one for one in listed(*both)} for both in zip(patterns, timelines, strict=True)
        )  # fmt: skip
        common = own.keys() & other.keys()
        if common:
            which = max(sorted(common), key=lambda key: abs(own[key].duration_ms - other[key].duration_ms))
            return _at(own[which], other[which], _group_name(patterns[0], which[0]))
    ends = tuple(timeline.duration_us / 1e3 for timeline in timelines)
    says = "No collective is known in which both took part, so they are laid against the ends of their iterations."
    return Encounter(ends, "", says, "before the end of the iteration")


def _group_name(pattern: WorkerPattern, name: str) -> str:
    """What torch says the group is for, else its name."""
    return next(
        (group.description for group in pattern.process_groups if group.name == name and group.description), name
    )


def _at(own: _Execution, other: _Execution, group: str) -> Encounter:
    kind = own.which[1]
    name = clean(f"{kind} of group {group}" if group else kind, 60)
    says = (
        f"Their clocks are not comparable: both are laid against the end of the same {name} (the upright line), which "
        "no member leaves before the last one has come."
    )
    return Encounter((own.end_ms, other.end_ms), name, says)


def _recorded(pattern: WorkerPattern, timeline: Timeline) -> Iterator[_Execution]:
    """Executions that the pattern lists with ends, in the shown iteration."""
    for record in pattern.collectives:
        if record.kind in _POINT_TO_POINT or record.paired_by == "none":
            continue
        try:
            yield from _executions(record, timeline)
        except InputError:
            continue


def _executions(record: CollectiveRecord, timeline: Timeline) -> Iterator[_Execution]:
    sequence = decode_series(record.sequence, np.int64)
    iteration = decode_series(record.iteration, np.int32)
    long_us = decode_series(record.duration_us, np.float32)
    end_us = decode_series(record.end_us, np.float64)
    if len({sequence.size, iteration.size, long_us.size, end_us.size}) != 1:
        return
    for at in np.flatnonzero(iteration == timeline.iteration):
        end_ms, long_ms = float(end_us[at] - timeline.start_us) / 1e3, float(long_us[at]) / 1e3
        if np.isfinite(end_ms) and 0 <= end_ms <= 1.05 * timeline.duration_us / 1e3:
            yield _Execution((record.group, record.kind, int(sequence[at])), end_ms, long_ms)


def _seen(pattern: WorkerPattern, timeline: Timeline) -> Iterator[_Execution]:
    """Executions on the timeline itself, counted from its end: the last of a name is the same one on both."""
    del pattern
    for track in timeline.tracks:
        slices = read_slices(track, _MOST_SLICES) if track.thread == "collective" and not track.dropped else None
        counts: dict[str, int] = {}
        for at in range(len(slices.start_ms) - 1, -1, -1) if slices is not None else ():
            name = slices.name(at)  # type: ignore[union-attr]
            counts[name] = counts.get(name, 0) + 1
            start, long = float(slices.start_ms[at]), float(slices.duration_ms[at])  # type: ignore[union-attr]
            yield _Execution(("", name, counts[name]), start + long, long)
