"""Devices that stand still: collectives that everybody has entered, and that some never complete (dumps only).

What a worker enqueued first its device finishes first. So the first open entry is where a device is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import msgspec

from eroica.diagnosis.blocked.groups import Group, GroupKey, Groups
from eroica.diagnosis.blocked.scene import Scene
from eroica.model.window import FlightEntry

#: Some members are through with these before others have come: their root, or all but their root.
_ONE_SIDED = re.compile(r"(?:^|:)_?(?:broadcast|reduce|gather|scatter|send|recv)(?:_oop|_coalesced)?(?: |$)")


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """The first collective that a worker has not completed, though all members entered it and others completed it.

    Attributes:
        group: Where.
        entry: The collective.
        finished: Members that have completed it.
    """

    group: Group
    entry: FlightEntry
    finished: tuple[int, ...]

    @property
    def left_behind(self) -> float:
        """Share of the members that are not known to have completed the collective."""
        return 1.0 - len(self.finished) / len(self.group.ranks)


def find_stalls(scene: Scene, groups: Groups) -> dict[int, Stall]:
    """Find workers whose first open collective was entered by all members and completed by more than half of them.

    What a worker enqueued first its device finishes first. If nobody is missing there and others are through, it waits
    for nobody: its own device (or the thread that watches it) stands still. Where half of the members or more are not
    through, it may as well be the transport; of two members, one that is through is enough. Operations with a root and
    point-to-point tell nothing of the kind: their members need not wait for each other.
    """
    first: dict[tuple[GroupKey, int], dict[int, FlightEntry]] = defaultdict(dict)
    for rank, member in scene.members.items():
        entry = next(iter(member.now.flight.open), None) if member.now.flight is not None else None
        is_meeting = entry is not None and not entry.is_p2p and not _ONE_SIDED.search(entry.name[:200])
        key = groups.key(rank, entry.group) if entry is not None and is_meeting else None
        if entry is not None and key is not None:
            first[key, entry.sequence][rank] = entry
    stalls = {}
    for (key, sequence), entries in first.items():
        group = groups.build(key)
        finished = tuple(rank for rank, number in group.completed.items() if number >= sequence)
        if not _most(len(finished), len(group.ranks)) or min(group.entered.values(), default=-1) < sequence:
            continue
        for rank in entries.keys() & group.entered.keys():
            stalls[rank] = Stall(group=group, entry=entries[rank], finished=finished)
    return stalls


def _most(finished: int, members: int) -> bool:
    return 2 * finished > members or (members == 2 and finished == 1)


def find_lagging(scene: Scene, group: Group, sequence: int, entries: Mapping[int, FlightEntry]) -> list[int]:
    """Find members that have an older entry open: what was enqueued first is finished first."""
    found = []
    for rank, entry in entries.items():
        flight = scene.members[rank].now.flight
        still_open = group.completed.get(rank, -1) < sequence
        if still_open and flight is not None and flight.open and flight.open[0] is not entry:
            found.append(rank)
    return found
