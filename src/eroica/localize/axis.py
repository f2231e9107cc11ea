"""One time axis for recorded traces of several workers, from the ends of collectives. For reports only.

Members of an execution leave it within microseconds, so the difference of its ends on two workers' clocks is the
difference of their clocks. No conclusion rests on it: who waits for whom is read from durations (`localize.arrivals`).

Array suffixes: M members of a group, K matched executions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.arrivals import SYNCHRONIZING
from eroica.localize.matching import Carriers, pair_by_order, pair_executions, stacked_ends
from eroica.model.pattern import CollectiveRecord, WorkerPattern

Floats = NDArray[np.float64]
#: Executions from which a drift can be told from jitter.
_FEWEST_FOR_DRIFT = 9
#: Share of the executions whose ends lie within the uncertainty.
_COVERED = 0.9


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Place of one worker's window on the axis: axis time = offset_ns + (1 + drift) * time since the window's start.

    Attributes:
        offset_ns: Start of its window after that of the lowest rank, nanoseconds.
        drift: By how much its clock runs slow against the lowest rank's, a fraction; 0 where it cannot be told.
        uncertainty_ns: Nine of ten ends lie within this of each other, summed over the groups between the two.
    """

    offset_ns: float
    drift: float
    uncertainty_ns: float


class TimeAxis(msgspec.Struct, frozen=True, kw_only=True):
    """All workers of a recorded window on one axis.

    Attributes:
        places: By global rank; the lowest rank lies at 0.
        uncertainty_ns: The largest of the places'.
        executions: Executions used, each counted once.
        unplaced: Ranks that could not be placed, and why.
    """

    places: dict[int, Place]
    uncertainty_ns: float
    executions: int
    unplaced: dict[int, str] = {}


class _Meeting(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Ends of matched executions. `end_us` is float64 [M, K]."""

    ranks: tuple[int, ...]
    end_us: Floats


def fit_axis(patterns: Sequence[WorkerPattern]) -> TimeAxis:
    """Place the windows of several workers on the time axis of the lowest rank.

    Groups that share members are chained, those with most executions first. Executions pair as in
    `localize.arrivals`; those that do not pair are not used.

    Args:
        patterns: Of recorded traces, one per worker; others have no ends and stay unplaced.
    """
    ordered = sorted({p.worker.global_rank: p for p in patterns}.values(), key=lambda p: p.worker.global_rank)
    if not ordered:
        return TimeAxis(places={}, uncertainty_ns=0.0, executions=0)
    meetings = sorted(_meetings(ordered), key=lambda one: -one.end_us.shape[1])
    first = ordered[0].worker.global_rank
    places = {first: Place(offset_ns=0.0, drift=0.0, uncertainty_ns=0.0)}
    used: set[int] = set()
    while _place_more(places, meetings, used):
        pass
    unplaced = {
        pattern.worker.global_rank: _why_not(pattern) for pattern in ordered if pattern.worker.global_rank not in places
    }
    return TimeAxis(
        places=places,
        uncertainty_ns=max(place.uncertainty_ns for place in places.values()),
        executions=sum(meetings[at].end_us.shape[1] for at in used),
        unplaced=unplaced,
    )


def _place_more(places: dict[int, Place], meetings: Sequence[_Meeting], used: set[int]) -> bool:
    """Place the members of the first meeting with some placed and some unplaced ones; whether there was any."""
    for at, meeting in enumerate(meetings):
        known = [rank for rank in meeting.ranks if rank in places]
        new = [rank for rank in meeting.ranks if rank not in places]
        if known and new:
            anchor = min(known, key=lambda rank: places[rank].uncertainty_ns)
            for rank in new:
                places[rank] = _place(meeting, rank, anchor, places[anchor])
            used.add(at)
            return True
    return False


def _place(meeting: _Meeting, rank: int, anchor: int, known: Place) -> Place:
    """One worker against another that has its place."""
    own_K, other_K = (meeting.end_us[meeting.ranks.index(one)] * 1e3 for one in (rank, anchor))
    target_K = known.offset_ns + (1 + known.drift) * other_K
    difference_K = target_K - own_K
    drift = _slope(own_K, difference_K)
    rest_K = difference_K - drift * own_K
    offset = float(np.median(rest_K))
    spread = float(np.quantile(np.abs(rest_K - offset), _COVERED))
    return Place(offset_ns=offset, drift=drift, uncertainty_ns=known.uncertainty_ns + spread)


def _slope(time_K: Floats, difference_K: Floats) -> float:
    """Drift of two clocks: from the medians of the first and the last third, which no single late exit moves."""
    third = time_K.size // 3
    if time_K.size < _FEWEST_FOR_DRIFT:
        return 0.0
    order = np.argsort(time_K, kind="stable")
    early, late = order[:third], order[-third:]
    apart = float(np.median(time_K[late]) - np.median(time_K[early]))
    return float(np.median(difference_K[late]) - np.median(difference_K[early])) / apart if apart > 0 else 0.0


def _meetings(patterns: Sequence[WorkerPattern]) -> Iterator[_Meeting]:
    """Matched executions of each group and kind, on those members that are there."""
    members = {group.name: group.ranks for pattern in patterns for group in pattern.process_groups}
    found: dict[tuple[str, str], dict[int, CollectiveRecord]] = defaultdict(dict)
    for pattern in patterns:
        for record in pattern.collectives:
            if record.kind in SYNCHRONIZING and record.end_us:
                found[record.group, record.kind][pattern.worker.global_rank] = record
    carriers = Carriers(patterns)
    for (group, _), owners in sorted(found.items()):
        ranks = tuple(rank for rank in sorted(owners) if group not in members or rank in members[group])
        if len(ranks) < 2:
            continue
        records = [owners[rank] for rank in ranks]
        pair = pair_executions if group in members else pair_by_order
        places, reason = pair(records, carriers.uneven_exit(group))
        if not reason:
            end_us = stacked_ends(records, places)
            if end_us.shape[1]:
                yield _Meeting(ranks=ranks, end_us=end_us)


def _why_not(pattern: WorkerPattern) -> str:
    judged = [record for record in pattern.collectives if record.kind in SYNCHRONIZING]
    if not judged:
        return "it shows no collective that its members leave together"
    if not any(record.end_us for record in judged):
        return "its pattern does not say when its collectives ended"
    return "its collectives do not pair with those of a worker that has a place"
