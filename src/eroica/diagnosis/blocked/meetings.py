"""Find process groups, their open collectives, who entered each and who did not, in all workers' Flight Recorders.

A *meeting* is one collective of one process group, by sequence number. Sequence numbers count the same way on every
member, so nothing here needs a clock.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set

import msgspec

from eroica.diagnosis.blocked.scene import Member, Scene
from eroica.model.window import FlightEntry
from eroica.model.words import clean

#: Two groups with the same name never share a member; these five tell them apart without comparing all ranks.
GroupKey = tuple[str, str, int, int, int]

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
        completed: Global rank -> last sequence number it completed, -1 for none.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    entered: dict[int, int]
    unknown: list[int]
    completed: dict[int, int]

    @property
    def label(self) -> str:
        """For sentences: "group mesh_dp"."""
        return f"group {clean(self.description or self.name, 60)}"


class Groups:
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
        self._built: dict[GroupKey, Group] = {}
        self._mixed: set[GroupKey] = set()
        for rank, member in scene.members.items():
            for name in member.now.flight.mixed if member.now.flight is not None else ():
                found = self.key(rank, name)
                if found is not None:
                    self._mixed.add(found)

    def key(self, rank: int, name: str) -> GroupKey | None:
        """Find the group of this name in which the worker is a member."""
        found = self._of[rank].get(name) if rank in self._of else None
        if found is None:
            found = next((key for key in self._by_name.get(name, ()) if rank in self._ranks[key]), None)
        if found is None and name in ("0", "default_pg"):
            found = (name, "default_pg", self._scene.expected, 0, self._scene.expected - 1)
            self._ranks.setdefault(found, tuple(range(self._scene.expected)))
        return found

    def build(self, key: GroupKey) -> Group:
        """Build the group with the standing of each member."""
        if key not in self._built:
            self._built[key] = self._build(key)
        return self._built[key]

    def _build(self, key: GroupKey) -> Group:
        name, scene = key[0], self._scene
        group = Group(name=name, description=key[1], ranks=self._ranks[key], entered={}, unknown=[], completed={})
        for rank in group.ranks:
            member = scene.members.get(rank)
            flight = member.now.flight if member is not None else None
            if rank in scene.deaths or rank in scene.left:
                group.entered[rank] = -2
                continue
            told = flight is not None and (key not in self._mixed or name in flight.mixed)
            progress = [one for one in flight.progress if one.name == name and told] if flight is not None else []
            recent = _sequences(flight.recent, name) if flight is not None else []
            opened = _sequences(flight.open, name) if flight is not None else []
            numbers = [*(one.enqueued for one in progress), *opened, *recent]
            if flight is None or not (numbers or (flight.progress and told)):
                group.unknown.append(rank)
                continue
            group.entered[rank] = max(numbers, default=-1)
            group.completed[rank] = max([*(one.completed for one in progress), *recent], default=-1)
        return group


def _sequences(entries: Iterable[FlightEntry], name: str) -> list[int]:
    return [one.sequence for one in entries if one.group == name and not one.is_p2p]


# --- open collectives ---


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Call of one member at a meeting: operation and, where all must agree on it, size."""

    operation: str
    elements: int | None

    @property
    def label(self) -> str:
        """For sentences: "gloo:all_reduce of 4096 elements"."""
        return self.operation if self.elements is None else f"{self.operation} of {self.elements} elements"


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """One open collective.

    Attributes:
        group: Process group of the collective.
        sequence: Number of the collective in its group.
        waiting: Members for which it is the oldest open one of the group.
        behind: Members that have not entered it but entered the group's previous open one; members that missed
            that one, too, are listed there (see `previous`).
        previous: The group's open meeting before it, if somebody is missing there.
        entries: Call of each member there, members that have completed it included.
        stalled: Members that have entered it but whose device is still at something earlier, if nobody else is missing
            (dumps only).
    """

    group: Group
    sequence: int
    waiting: tuple[int, ...]
    behind: tuple[int, ...]
    previous: int | None
    entries: dict[int, FlightEntry]
    stalled: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Operation that most of the waiting members have called."""
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
        """Group members (ranks) by what they call; more than one place is a desynchronized collective."""
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
        facing: Ranks of `peers` whose peer waits for them in turn: both are there, and yet the transfer does not end.
        pairs: Global rank -> that send or receive.
        stalls: Global rank -> the collective at which its device stands still although nobody is missing there.
    """

    items: tuple[Meeting, ...]
    of: dict[int, tuple[int, ...]]
    peers: dict[int, int]
    facing: frozenset[int] = frozenset()
    pairs: dict[int, FlightEntry] = {}
    stalls: dict[int, Stall] = {}


def is_first(scene: Scene, rank: int, meeting: Meeting) -> bool:
    """Return True if a worker that waits in a meeting has nothing older open."""
    flight = scene.members[rank].now.flight
    return flight is not None and flight.open[0] is meeting.entries[rank]


def operation_of(entry: FlightEntry) -> str:
    """Return the operation of a send or receive without its peer: "nccl:send"."""
    return clean(entry.name.partition(" ")[0], 80)


def find_meetings(scene: Scene) -> Meetings:
    """Read all Flight Recorders."""
    oldest: dict[GroupKey, dict[int, dict[int, FlightEntry]]] = defaultdict(lambda: defaultdict(dict))
    groups = Groups(scene)
    stalls = find_stalls(scene, groups) if scene.from_dumps else {}
    for rank, member in scene.members.items():
        if rank in stalls:
            continue
        for name, entry in _oldest_open(member).items():
            key = groups.key(rank, name)
            if key is not None:
                oldest[key][entry.sequence][rank] = entry
    items: list[Meeting] = []
    of: dict[int, list[int]] = defaultdict(list)
    for key in sorted(oldest):
        for meeting in _meetings_of(scene, groups.build(key), oldest[key], len(items), stalls.keys()):
            for rank in meeting.waiting:
                of[rank].append(len(items))
            items.append(meeting)
    pairs = _pairs(scene, groups, stalls.keys())
    return Meetings(
        items=tuple(items),
        of={rank: tuple(found) for rank, found in of.items()},
        peers={rank: peer for rank, (peer, _) in pairs.items()},
        facing=frozenset(_facing(scene, pairs)),
        pairs={rank: entry for rank, (_, entry) in pairs.items()},
        stalls=stalls,
    )


def _oldest_open(member: Member) -> dict[str, FlightEntry]:
    flight = member.now.flight
    oldest: dict[str, FlightEntry] = {}
    for entry in flight.open if flight is not None else ():
        if not entry.is_p2p and (entry.group not in oldest or entry.sequence < oldest[entry.group].sequence):
            oldest[entry.group] = entry
    return oldest


def _meetings_of(
    scene: Scene, group: Group, by_sequence: dict[int, dict[int, FlightEntry]], start: int, stalls: Set[int]
) -> Iterator[Meeting]:
    """List a group's meetings, oldest first. Each names only the members that no earlier one misses: that is linear."""
    standing = sorted((number, rank) for rank, number in group.entered.items())
    calls = _calls(scene, group, by_sequence.keys())
    stalled = [rank for rank in group.ranks if rank in stalls and rank in group.entered]
    at, is_missed = 0, False
    for index, sequence in enumerate(sorted(by_sequence)):
        behind = []
        while at < len(standing) and standing[at][0] < sequence:
            behind.append(standing[at][1])
            at += 1
        waiting = tuple(sorted(by_sequence[sequence]))
        if not behind and not is_missed:
            behind = [rank for rank in group.unknown if not _seems_to_be_there(scene, rank)]
        entries = calls[sequence] | by_sequence[sequence]
        lagging = [] if behind or is_missed or not scene.from_dumps else find_lagging(scene, group, sequence, entries)
        yield Meeting(
            group=group,
            sequence=sequence,
            waiting=waiting,
            behind=tuple(sorted(behind)),
            previous=start + index - 1 if is_missed else None,
            entries=entries,
            stalled=tuple(dict.fromkeys([*(rank for rank in stalled if group.entered[rank] >= sequence), *lagging])),
        )
        is_missed = is_missed or bool(behind)


def _calls(scene: Scene, group: Group, sequences: Iterable[int]) -> dict[int, dict[int, FlightEntry]]:
    """Find the call of each member, also of one that is further on, at these sequence numbers."""
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
    """True if a worker that could not be asked is not stopped, and its stack ends in a collective."""
    member = scene.members.get(rank)
    return member is not None and member.seat == "communication" and not member.is_stopped


def _pairs(scene: Scene, groups: Groups, stalls: Set[int]) -> dict[int, tuple[int, FlightEntry]]:
    """Map each global rank to the peer of its oldest open send or receive, and to that entry."""
    pairs = {rank: _pair(member, groups) for rank, member in scene.members.items() if rank not in stalls}
    return {rank: pair for rank, pair in pairs.items() if pair is not None}


def _facing(scene: Scene, pairs: Mapping[int, tuple[int, FlightEntry]]) -> Iterator[int]:
    """Find workers whose peer faces them; in dumps the peer must have nothing older open."""
    for rank, (peer, _) in pairs.items():
        if peer in pairs and pairs[peer][0] == rank:
            flight = scene.members[peer].now.flight
            if not scene.from_dumps or (flight is not None and flight.open[0] is pairs[peer][1]):
                yield rank


def _pair(member: Member, groups: Groups) -> tuple[int, FlightEntry] | None:
    """Find the peer (global rank) of the oldest open send or receive; NCCL names it, gloo leaves no entry."""
    for entry in member.now.flight.open if member.now.flight is not None else ():
        match = _POINT_TO_POINT.search(entry.name[:200]) if entry.is_p2p else None
        key = groups.key(member.rank, entry.group) if match else None
        if match is not None and key is not None and len(match[1]) < 9 and int(match[1]) < len(groups.build(key).ranks):
            return groups.build(key).ranks[int(match[1])], entry
    return None


# --- devices that stand still: collectives that everybody has entered, and that some never complete (dumps only) ---


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
        members = len(group.ranks)
        is_most = 2 * len(finished) > members or (members == 2 and len(finished) == 1)
        if not is_most or min(group.entered.values(), default=-1) < sequence:
            continue
        for rank in entries.keys() & group.entered.keys():
            stalls[rank] = Stall(group=group, entry=entries[rank], finished=finished)
    return stalls


def find_lagging(scene: Scene, group: Group, sequence: int, entries: Mapping[int, FlightEntry]) -> list[int]:
    """Find members that have an older entry open: what was enqueued first is finished first."""
    flights = {rank: scene.members[rank].now.flight for rank in entries if group.completed.get(rank, -1) < sequence}
    return [rank for rank, flight in flights.items() if flight and flight.open and flight.open[0] is not entries[rank]]
