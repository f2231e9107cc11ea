"""Process groups as all workers together tell them, and how far each member is."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from eroica.diagnosis.blocked.scene import Scene
from eroica.model.words import clean

#: Two groups with the same name never share a member; these five tell them apart without comparing all ranks.
GroupKey = tuple[str, str, int, int, int]

_GONE = -2


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group and how far its members are.

    Attributes:
        name: torch's name.
        description: torch's description.
        ranks: Global ranks of its members.
        entered: Global rank -> last sequence number it entered; -2 for one that is gone.
        unknown: Members that could not be asked.
        completed: Global rank -> last sequence number it completed; known from dumps only.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    entered: dict[int, int]
    unknown: tuple[int, ...]
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

    def ranks(self, key: GroupKey) -> tuple[int, ...]:
        """Return the members of a group."""
        return self._ranks[key]

    def build(self, key: GroupKey) -> Group:
        """Build the group with the standing of each member."""
        if key not in self._built:
            self._built[key] = self._build(key)
        return self._built[key]

    def _build(self, key: GroupKey) -> Group:
        entered: dict[int, int] = {}
        completed: dict[int, int] = {}
        unknown = []
        for rank in self._ranks[key]:
            number = self._entered(rank, key[0], mixed=key in self._mixed)
            if number is None:
                unknown.append(rank)
            else:
                entered[rank] = number
            if number is not None and self._scene.from_dumps:
                completed[rank] = self._completed(rank, key[0], mixed=key in self._mixed)
        return Group(
            name=key[0],
            description=key[1],
            ranks=self._ranks[key],
            entered=entered,
            unknown=tuple(unknown),
            completed=completed,
        )

    def _entered(self, rank: int, name: str, *, mixed: bool) -> int | None:
        """Return the last sequence number that a member entered; None if nobody knows."""
        if rank in self._scene.deaths or rank in self._scene.left:
            return _GONE
        member = self._scene.members.get(rank)
        flight = member.now.flight if member is not None else None
        if flight is None:
            return None
        told = not mixed or name in flight.mixed
        numbers = [group.enqueued for group in flight.progress if group.name == name and told]
        entries = (*flight.open, *flight.recent)
        numbers += [entry.sequence for entry in entries if entry.group == name and not entry.is_p2p]
        if numbers:
            return max(numbers)
        return -1 if flight.progress and told else None

    def _completed(self, rank: int, name: str, *, mixed: bool) -> int:
        """Return the last sequence number that a member completed; -1 if none or if nobody knows."""
        member = self._scene.members.get(rank)
        flight = member.now.flight if member is not None else None
        if flight is None:
            return -1
        told = not mixed or name in flight.mixed
        numbers = [group.completed for group in flight.progress if group.name == name and told]
        numbers += [entry.sequence for entry in flight.recent if entry.group == name and not entry.is_p2p]
        return max(numbers, default=-1)
