"""Which collectives are open, who entered them, who did not: read from the Flight Recorders of all workers.

A *meeting* is one collective of one process group, by sequence number. Sequence numbers count the same way on every
member, so nothing here needs a clock.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from eroica.diagnosis.blocked.scene import Member, Scene
from eroica.model.window import FlightEntry
from eroica.report.words import clean

#: Two groups with the same name never share a member; these five tell them apart without comparing all ranks.
GroupKey = tuple[str, str, int, int, int]

_GONE = -2
#: Operations whose members all pass the same number of elements; others may differ by root or by shard.
_SAME_SIZE = ("all_reduce", "allreduce", "broadcast", "reduce")
_POINT_TO_POINT = re.compile(r"(?:send|recv) \d+(?:->|<-)(\d+)$")


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group and how far its members are.

    Attributes:
        name: torch's name.
        description: torch's description.
        ranks: Global ranks of its members.
        entered: Global rank -> last sequence number it entered; -2 for one that is gone.
        unknown: Members that could not be asked.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    entered: dict[int, int]
    unknown: tuple[int, ...]

    @property
    def label(self) -> str:
        """For sentences: "group mesh_dp"."""
        return f"group {clean(self.description or self.name, 60)}"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What one member calls at a meeting: operation and, where all must agree on it, size."""

    operation: str
    elements: int | None

    @property
    def label(self) -> str:
        """For sentences: "gloo:all_reduce of 4096 elements"."""
        return self.operation if self.elements is None else f"{self.operation} of {self.elements} elements"


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """One open collective.

    Attributes:
        group: Where.
        sequence: Its number in the group.
        waiting: Those for whom it is the oldest open one of the group.
        behind: Members that have not entered it but entered the group's previous open one; who did not enter that
            either is behind both (see `previous`).
        previous: The group's open meeting before it, if somebody is missing there.
        entries: What each member called there, those that have completed it included.
    """

    group: Group
    sequence: int
    waiting: tuple[int, ...]
    behind: tuple[int, ...]
    previous: int | None
    entries: dict[int, FlightEntry]

    @property
    def name(self) -> str:
        """The operation most of those who wait have called."""
        names = [self.entries[rank].name for rank in self.waiting]
        return clean(max(sorted(set(names)), key=names.count), 80)

    @property
    def label(self) -> str:
        """For sentences: "gloo:all_reduce number 12 of group default_pg"."""
        return f"{self.name} number {self.sequence} of {self.group.label}"

    @property
    def absent(self) -> tuple[int, ...]:
        """All members known not to have entered."""
        return tuple(rank for rank, number in self.group.entered.items() if number < self.sequence)

    def places(self) -> dict[Place, list[int]]:
        """Who calls what there; more than one place is a desynchronized collective."""
        names = {entry.name for entry in self.entries.values()}
        sized = len(names) == 1 and next(iter(names)).rpartition(":")[2] in _SAME_SIZE
        found: dict[Place, list[int]] = defaultdict(list)
        for rank, entry in self.entries.items():
            place = Place(operation=clean(entry.name, 80), elements=entry.elements if sized else None)
            found[place].append(rank)
        return found


class Meetings(msgspec.Struct, frozen=True, kw_only=True):
    """All open meetings.

    Attributes:
        items: By group, then by sequence number; `Meeting.previous` is an index into it.
        of: Global rank -> the meetings (indices) it waits in, one per group at most.
        peers: Global rank -> the global rank that its open send or receive is for, where the recorder names it.
    """

    items: tuple[Meeting, ...]
    of: dict[int, tuple[int, ...]]
    peers: dict[int, int]


def find_meetings(scene: Scene) -> Meetings:
    """Read all Flight Recorders."""
    oldest: dict[GroupKey, dict[int, dict[int, FlightEntry]]] = defaultdict(lambda: defaultdict(dict))
    groups = _Groups(scene)
    for rank, member in scene.members.items():
        for name, entry in _oldest_open(member).items():
            key = groups.key(rank, name)
            if key is not None:
                oldest[key][entry.sequence][rank] = entry
    items: list[Meeting] = []
    of: dict[int, list[int]] = defaultdict(list)
    for key in sorted(oldest):
        for meeting in _meetings_of(scene, groups.build(key), oldest[key], len(items)):
            for rank in meeting.waiting:
                of[rank].append(len(items))
            items.append(meeting)
    peers = {rank: peer for rank, member in scene.members.items() if (peer := _peer(member, groups)) is not None}
    return Meetings(items=tuple(items), of={rank: tuple(found) for rank, found in of.items()}, peers=peers)


class _Groups:
    """Process groups by key; a worker that told no groups is found through the others'."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._ranks: dict[GroupKey, tuple[int, ...]] = {}
        self._of: dict[int, dict[str, GroupKey]] = defaultdict(dict)
        for rank, member in scene.members.items():
            for group in member.now.groups:
                if group.ranks:
                    ends = len(group.ranks), group.ranks[0], group.ranks[-1]
                    key = (group.name, group.description, *ends)
                    self._ranks.setdefault(key, group.ranks)
                    self._of[rank][group.name] = key
        self._by_name: dict[str, list[GroupKey]] = defaultdict(list)
        for key in sorted(self._ranks):
            self._by_name[key[0]].append(key)

    def key(self, rank: int, name: str) -> GroupKey | None:
        """The group of this name in which the worker is a member."""
        found = self._of[rank].get(name) if rank in self._of else None
        if found is None:
            found = next((key for key in self._by_name.get(name, ()) if rank in self._ranks[key]), None)
        if found is None and name in ("0", "default_pg"):
            found = (name, "default_pg", self._scene.expected, 0, self._scene.expected - 1)
            self._ranks.setdefault(found, tuple(range(self._scene.expected)))
        return found

    def ranks(self, key: GroupKey) -> tuple[int, ...]:
        """Its members."""
        return self._ranks[key]

    def build(self, key: GroupKey) -> Group:
        """The group with the standing of each member."""
        entered: dict[int, int] = {}
        unknown = []
        for rank in self._ranks[key]:
            number = self._entered(rank, key[0])
            if number is None:
                unknown.append(rank)
            else:
                entered[rank] = number
        ranks = self._ranks[key]
        return Group(name=key[0], description=key[1], ranks=ranks, entered=entered, unknown=tuple(unknown))

    def _entered(self, rank: int, name: str) -> int | None:
        """Last sequence number entered; None if nobody knows."""
        if rank in self._scene.deaths or rank in self._scene.left:
            return _GONE
        member = self._scene.members.get(rank)
        flight = member.now.flight if member is not None else None
        if flight is None:
            return None
        numbers = [group.enqueued for group in flight.progress if group.name == name]
        entries = (*flight.open, *flight.recent)
        numbers += [entry.sequence for entry in entries if entry.group == name and not entry.is_p2p]
        if numbers:
            return max(numbers)
        return -1 if flight.progress else None


def _oldest_open(member: Member) -> dict[str, FlightEntry]:
    flight = member.now.flight
    oldest: dict[str, FlightEntry] = {}
    for entry in flight.open if flight is not None else ():
        if not entry.is_p2p and (entry.group not in oldest or entry.sequence < oldest[entry.group].sequence):
            oldest[entry.group] = entry
    return oldest


def _meetings_of(
    scene: Scene, group: Group, by_sequence: dict[int, dict[int, FlightEntry]], start: int
) -> Iterator[Meeting]:
    """A group's meetings, oldest first; each lists only those it is the first to miss, so that all stays linear."""
    standing = sorted((number, rank) for rank, number in group.entered.items())
    calls = _calls(scene, group, by_sequence.keys())
    at, is_missed = 0, False
    for index, sequence in enumerate(sorted(by_sequence)):
        behind = []
        while at < len(standing) and standing[at][0] < sequence:
            behind.append(standing[at][1])
            at += 1
        waiting = tuple(sorted(by_sequence[sequence]))
        if not behind and not is_missed:
            behind = [rank for rank in group.unknown if not _seems_to_be_there(scene, rank)]
        yield Meeting(
            group=group,
            sequence=sequence,
            waiting=waiting,
            behind=tuple(sorted(behind)),
            previous=start + index - 1 if is_missed else None,
            entries=calls[sequence] | by_sequence[sequence],
        )
        is_missed = is_missed or bool(behind)


def _calls(scene: Scene, group: Group, sequences: Iterable[int]) -> dict[int, dict[int, FlightEntry]]:
    """What every member, also one that is further on, called at these sequence numbers."""
    found: dict[int, dict[int, FlightEntry]] = {number: {} for number in sequences}
    for rank in group.ranks:
        member = scene.members.get(rank)
        if member is None or member.now.flight is None:
            continue
        for entry in (*member.now.flight.recent, *member.now.flight.open):
            if entry.group == group.name and not entry.is_p2p and entry.sequence in found:
                found[entry.sequence][rank] = entry
    return found


def _seems_to_be_there(scene: Scene, rank: int) -> bool:
    """A worker that could not be asked but whose stack ends in a collective."""
    member = scene.members.get(rank)
    return member is not None and member.seat == "communication" and not member.is_stopped


def _peer(member: Member, groups: _Groups) -> int | None:
    """Global rank that the oldest open send or receive is for; NCCL writes it into the name, gloo leaves no entry."""
    for entry in member.now.flight.open if member.now.flight is not None else ():
        match = _POINT_TO_POINT.search(entry.name[:200]) if entry.is_p2p else None
        key = groups.key(member.rank, entry.group) if match else None
        if match is not None and key is not None and len(match[1]) < 9 and int(match[1]) < len(groups.ranks(key)):
            return groups.ranks(key)[int(match[1])]
    return None
