"""The graph of waits: open collectives in all workers' Flight Recorders, who entered each, and who waits for whom.

A *meeting* is one open collective of one process group, by sequence number. Sequence numbers count the same way on
every member, so nothing here needs a clock. Nodes of the graph are workers (their global rank) and meetings (-1 minus
their index). A worker points to the meetings it waits in, a meeting to those who have not entered it (or whose device
stands still before it). Every walk is linear in nodes and edges.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import mode

import msgspec

from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.words import name_workers
from eroica.model.window import FlightEntry
from eroica.model.words import clean

Node = int
#: Two groups with the same name never share a member; these five tell them apart without comparing all ranks.
GroupKey = tuple[str, str, int, int, int]

#: Operations whose members all pass the same number of elements; others may differ by root or by shard.
_SAME_SIZE = ("all_reduce", "allreduce", "broadcast", "reduce")
_POINT_TO_POINT = re.compile(r"(?:send|recv) \d+(?:->|<-)(\d{1,8})$")
#: Some members are through with these before others have come: their root, or all but their root.
_ONE_SIDED = re.compile(r"(?:^|:)_?(?:broadcast|reduce|gather|scatter|send|recv)(?:_oop|_coalesced)?(?: |$)")


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group and how far its members are.

    Attributes:
        key: Its name and description, number of members, first and last of them.
        ranks: Global ranks of its members.
        entered: Global rank -> last sequence number it entered; -2 for one that is gone. Of others it is not known.
        completed: Global rank -> last sequence number it completed, -1 for none.
    """

    key: GroupKey
    ranks: tuple[int, ...]
    entered: dict[int, int]
    completed: dict[int, int]

    @property
    def label(self) -> str:
        """For sentences: "group mesh_dp"."""
        name, description, *_ = self.key
        return f"group {clean(description or name, 60)}"


class _Groups:
    """Process groups by worker and name, built once asked for; who told no groups is found through the others'."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._ranks: dict[GroupKey, tuple[int, ...]] = {}
        for member in scene.members.values():
            for group in member.now.groups:
                if group.ranks:
                    key = group.name, group.description, len(group.ranks), group.ranks[0], group.ranks[-1]
                    self._ranks.setdefault(key, group.ranks)
        self._key_of = {(rank, key[0]): key for key in sorted(self._ranks, reverse=True) for rank in self._ranks[key]}
        flights = ((rank, one.now.flight) for rank, one in scene.members.items() if one.now.flight is not None)
        self._mixed = {self._key_of.get((rank, name)) for rank, flight in flights for name in flight.mixed}
        self.built: dict[GroupKey, Group] = {}

    def find(self, rank: int, name: str) -> Group | None:
        """Find the group of this name in which the worker is a member, with the standing of each member."""
        key = self._key_of.get((rank, name))
        if key is None and name in ("0", "default_pg") and rank < self._scene.expected:
            key = (name, "default_pg", self._scene.expected, 0, self._scene.expected - 1)
            self._ranks.setdefault(key, tuple(range(self._scene.expected)))
        if key is not None and key not in self.built:
            self.built[key] = self._build(key)
        return self.built[key] if key is not None else None

    def _build(self, key: GroupKey) -> Group:
        name, scene = key[0], self._scene
        group = Group(key=key, ranks=self._ranks[key], entered={}, completed={})
        for rank in group.ranks:
            member = scene.members.get(rank)
            flight = member.now.flight if member is not None else None
            if rank in scene.deaths or rank in scene.left:
                group.entered[rank] = -2
            elif flight is not None:
                counts = key not in self._mixed or name in flight.mixed
                progress = [one for one in flight.progress if one.name == name and counts]
                done, opened = ([e.sequence for e in some if _is_of(e, name)] for some in (flight.recent, flight.open))
                numbers = [*(one.enqueued for one in progress), *opened, *done]
                if numbers or (flight.progress and counts):
                    group.entered[rank] = max(numbers, default=-1)
                    group.completed[rank] = max([*(one.completed for one in progress), *done], default=-1)
        return group


def _is_of(entry: FlightEntry, name: str) -> bool:
    return entry.group == name and not entry.is_p2p


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """One open collective.

    Attributes:
        group: Process group of the collective.
        name: Operation that most of the waiting members have called.
        sequence: Number of the collective in its group.
        waiting: Members for which it is the oldest open one of the group.
        awaited: Members that have not entered it but entered the group's previous open one; members that missed
            that one, too, are listed there (see `previous`). In dumps, if none is missing, members that have entered
            it but whose device is still at something earlier.
        previous: The group's open meeting before it (an index), if members are awaited there.
        entries: Call of each member there, members that have completed it included.
        finished: Members that are through, if that is most of them, so that all have come (dumps only).
    """

    group: Group
    name: str
    sequence: int
    waiting: tuple[int, ...]
    awaited: tuple[int, ...]
    previous: int | None
    entries: dict[int, FlightEntry]
    finished: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """For sentences: "gloo:all_reduce number 12 of group default_pg", "nccl:send 0->1 of group PIPELINE"."""
        if self.is_pair:
            return f"{clean(self.entries[self.waiting[0]].name, 80)} of {self.group.label}"
        return f"{self.name} number {self.sequence} of {self.group.label}"

    @property
    def is_pair(self) -> bool:
        """True for a send or a receive."""
        return self.entries[self.waiting[0]].is_p2p

    @property
    def standing(self) -> str:
        """Sentence: "gloo:barrier number 3 of group dp: 3 of 4 members have entered; it waits for worker 2."."""
        entered, left = (
            sum(number >= self.sequence for number in numbers.values())
            for numbers in (self.group.entered, self.group.completed)
        )
        passed = f", {left} have left it" if left else ""
        rest = f"; it waits for {name_workers(self.awaited)}" if self.awaited else ""
        return f"{self.label}: {entered} of {len(self.group.ranks)} members have entered{passed}{rest}."

    def places(self) -> dict[str, list[int]]:
        """Group members (ranks) by operation and, where all must agree on it, size: more than one is a mismatch."""
        names = {entry.name for entry in self.entries.values()}
        sized = len(names) == 1 and next(iter(names)).rpartition(":")[2] in _SAME_SIZE
        found: dict[str, list[int]] = defaultdict(list)
        for rank, entry in self.entries.items():
            found[clean(entry.name, 80) + (f" of {entry.elements} elements" if sized else "")].append(rank)
        return found


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Graph of waits between workers and meetings.

    Attributes:
        meetings: By group, then by sequence number; sends and receives last.
        onward: Node -> the nodes that it waits for.
        back: Node -> the nodes that wait for it.
    """

    meetings: tuple[Meeting, ...]
    onward: Mapping[Node, list[Node]]
    back: Mapping[Node, list[Node]]

    @property
    def waiters(self) -> frozenset[int]:
        """Workers that wait in a meeting."""
        return frozenset(node for node in self.onward if node >= 0)

    def meetings_at(self, nodes: Iterable[Node]) -> list[Meeting]:
        """Return the meetings among some nodes, by group and sequence number."""
        return [self.meetings[-1 - node] for node in sorted(nodes, reverse=True) if node < 0]

    def reaching(self, targets: Iterable[Node]) -> frozenset[Node]:
        """Find nodes that wait, directly or through others, for one of the targets; the targets included."""
        return _walk(self.back, targets)

    def reached(self, starts: Iterable[Node]) -> frozenset[Node]:
        """Find nodes that the starts wait for, directly or through others; the starts included."""
        return _walk(self.onward, starts)

    def ends(self) -> frozenset[Node]:
        """Find nodes that others wait for and that wait for nobody."""
        return frozenset(node for node in self.back if not self.onward.get(node))

    def circle(self) -> frozenset[Node]:
        """Find nodes that wait for each other in a circle from which no way leads to an end."""
        closed = set(self.onward.keys() - self.reaching(self.ends()))
        free = {node for node in closed if closed.isdisjoint(self.back.get(node, ()))}  # nobody there waits for them
        while free:
            closed -= free
            free = {other for node in free for other in self.onward[node] if closed.isdisjoint(self.back[other])}
        return frozenset(closed)


def _walk(edges: Mapping[Node, list[Node]], starts: Iterable[Node]) -> frozenset[Node]:
    seen = set(starts)
    stack = list(seen)
    while stack:
        for other in edges.get(stack.pop(), ()):
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return frozenset(seen)


def is_first(scene: Scene, rank: int, meeting: Meeting) -> bool:
    """Return True if a worker that waits in a meeting has nothing older open."""
    return scene.members[rank].open[0] is meeting.entries[rank]


def find_waiting(scene: Scene) -> Waiting:
    """Read all Flight Recorders."""
    groups = _Groups(scene)
    oldest: dict[GroupKey, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    pairs: dict[int, tuple[Group, int, FlightEntry]] = {}
    for rank, member in scene.members.items():
        seen: set[str] = set()
        for entry in member.open:
            group = groups.find(rank, entry.group)
            if group is not None and entry.is_p2p:
                match = _POINT_TO_POINT.search(entry.name[:200])
                if match is not None and int(match[1]) < len(group.ranks):
                    pairs.setdefault(rank, (group, group.ranks[int(match[1])], entry))
            elif group is not None and entry.group not in seen:
                seen.add(entry.group)
                oldest[group.key][entry.sequence].append(rank)
    meetings: list[Meeting] = []
    for key in sorted(oldest):
        meetings += _meetings_of(scene, groups.built[key], oldest[key], len(meetings))
    meetings += _pairs(scene, pairs)
    onward: dict[Node, list[Node]] = defaultdict(list)
    back: dict[Node, list[Node]] = defaultdict(list)
    for index, meeting in enumerate(meetings):
        node = -1 - index
        before = [] if meeting.previous is None else [-1 - meeting.previous]
        edges = [(rank, node) for rank in meeting.waiting] + [(node, other) for other in (*meeting.awaited, *before)]
        for waiter, other in edges:
            onward[waiter].append(other)
            back[other].append(waiter)
    return Waiting(meetings=tuple(meetings), onward=dict(onward), back=dict(back))


def _pairs(scene: Scene, pairs: Mapping[int, tuple[Group, int, FlightEntry]]) -> Iterator[Meeting]:
    """List sends and receives as meetings of two, if the recorder names the peer (NCCL's does, gloo's holds none).

    Both have come if each has one for the other open; in dumps with nothing older open.
    """
    first = {
        rank: peer
        for rank, (_, peer, entry) in pairs.items()
        if not scene.from_dumps or scene.members[rank].open[0] is entry
    }
    for rank, (group, peer, entry) in sorted(pairs.items()):
        are_both = first.get(rank) == peer and first.get(peer) == rank
        if are_both and rank > peer:
            continue
        ranks = (rank, peer) if are_both else (rank,)
        pair = Group(
            key=(*group.key[:2], 2, rank, peer),
            ranks=(rank, peer),
            entered=dict.fromkeys(ranks, entry.sequence),
            completed=dict.fromkeys(ranks, -1),
        )
        yield Meeting(
            group=pair,
            name=clean(entry.name.partition(" ")[0], 80),  # without its peer: "nccl:send"
            sequence=entry.sequence,
            waiting=ranks,
            awaited=() if are_both else (peer,),
            previous=None,
            entries=dict.fromkeys(ranks, entry),
        )


def _meetings_of(scene: Scene, group: Group, oldest: Mapping[int, list[int]], start: int) -> Iterator[Meeting]:
    """List a group's meetings, oldest first. Each names only the members that no earlier one misses: that is linear.

    `oldest` holds, by sequence number, the workers of which this is the oldest open collective in the group; `start` is
    the index of its first meeting among those of all groups.
    """
    standing = sorted((number, rank) for rank, number in group.entered.items())
    calls = _calls(scene, group, oldest)
    unseen = [rank for rank in group.ranks if rank not in group.entered and scene.seat(rank) != "communication"]
    at, previous = 0, None
    for index, sequence in enumerate(sorted(oldest), start):
        awaited, entries = list[int](), calls[sequence]
        while at < len(standing) and standing[at][0] < sequence:
            awaited.append(standing[at][1])
            at += 1
        name = mode(sorted(entries[rank].name for rank in oldest[sequence]))
        finished = _finished(group, sequence, name) if scene.from_dumps and not awaited else ()
        if not awaited and previous is None and not finished:
            awaited = unseen
        is_missed = previous is not None or bool(awaited)
        if scene.from_dumps and not is_missed:  # what was enqueued first is finished first
            open_at = {rank: scene.members[rank].open for rank in entries if group.completed.get(rank, -1) < sequence}
            awaited = [rank for rank, some in open_at.items() if some and some[0] is not entries[rank]]
        yield Meeting(
            group=group,
            name=clean(name, 80),
            sequence=sequence,
            waiting=tuple(sorted(oldest[sequence])),
            awaited=tuple(sorted(awaited)),
            previous=previous,
            entries=entries,
            finished=finished,
        )
        previous = index if is_missed else None


def _calls(scene: Scene, group: Group, sequences: Iterable[int]) -> dict[int, dict[int, FlightEntry]]:
    """Find the call of each member, also of one that is further on, at these sequence numbers."""
    found: dict[int, dict[int, FlightEntry]] = {number: {} for number in sequences}
    for rank in group.ranks:
        flight = scene.members[rank].now.flight if rank in scene.members else None
        for entry in (*flight.recent, *reversed(flight.open)) if flight is not None else ():
            if _is_of(entry, group.key[0]) and entry.sequence in found:
                found[entry.sequence][rank] = entry
    return found


def _finished(group: Group, sequence: int, name: str) -> tuple[int, ...]:
    """List members that are through with a collective, if that is most of them; of two members one is enough.

    Operations with a root tell nothing of the kind: their members need not wait for each other.
    """
    finished = tuple(rank for rank, number in group.completed.items() if number >= sequence)
    is_most = 2 * len(finished) > len(group.ranks) or (len(group.ranks) == 2 and len(finished) == 1)
    return finished if is_most and not _ONE_SIDED.search(name[:200]) else ()
