"""Find the process group of sends and receives under gloo: neither trace nor Flight Recorder names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from eroica.model.axes import axis_of
from eroica.model.window import FlightEntry
from eroica.model.worker import ProcessGroup

#: What PyTorch calls the group of all workers. It is there whether it is used or not.
_OF_ALL = "default_pg"
_Skips = Literal["yes", "no", "unknown"]


def group_of_sends(
    flight: Sequence[FlightEntry], groups: Sequence[ProcessGroup], window: tuple[int, int], sends_ns: Sequence[int]
) -> ProcessGroup | None:
    """The only group of a worker that can hold its sends and receives; None if it could be any of several.

    Sends and receives leave no entry in the Flight Recorder, but the operation number of their group skips for each. If
    it skips in one group, that is it. Else it is among those in which nothing tells that it does not skip: the one
    described as a pipeline, or the one that was made for the purpose, since nothing else was ever recorded in it. The
    group of all workers is there anyway.

    Args:
        flight: The recorder's entries.
        groups: Process groups of this worker.
        window: Its start and end, wall-clock nanoseconds.
        sends_ns: When the sends and receives began.
    """
    if len(groups) == 1:
        return groups[0]
    shared = [group for group in groups if len(group.ranks) > 1]
    skips = {group.name: _skips(flight, group, window, sends_ns) for group in shared}
    certain = [group for group in shared if skips[group.name] == "yes"]
    if certain:
        return _only(certain)
    left = [group for group in shared if skips[group.name] == "unknown"]
    described = [group for group in left if axis_of(group.description) == "stage"]
    if described or len(left) == 1:
        return _only(described or left)
    used = {entry.group for entry in flight}
    return _only([group for group in left if group.description != _OF_ALL and group.name not in used])


def _skips(
    flight: Sequence[FlightEntry], group: ProcessGroup, window: tuple[int, int], sends_ns: Sequence[int]
) -> _Skips:
    """Tell whether a group's operation numbers skip; unknown without a send between its entries."""
    mine = [
        entry
        for entry in flight
        if entry.group == group.name and entry.operation > 0 and window[0] <= entry.created_ns <= window[1]
    ]
    collectives = [entry for entry in mine if not entry.is_p2p]
    if len({entry.operation - entry.sequence for entry in collectives}) > 1:
        return "yes"
    created = [entry.created_ns for entry in collectives]
    between = bool(created) and any(min(created) < send < max(created) for send in sends_ns)
    return "no" if between else "unknown"


def _only(groups: Sequence[ProcessGroup]) -> ProcessGroup | None:
    return groups[0] if len(groups) == 1 else None
