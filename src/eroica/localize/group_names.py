"""Process groups that share a name though their members differ, told apart.

Some releases of PyTorch count the groups of each process by itself, so groups that were split off together ("5" of
ranks 0 and 1, "5" of ranks 2 and 3) bear one name. Collectives, roles and families are looked up by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import msgspec

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.worker import ProcessGroup

#: Number of members, the first and the last of them: members of groups of one name differ in one of these.
_Members = tuple[int, int, int]


def tell_groups_apart(*windows: Sequence[WorkerPattern]) -> list[Sequence[WorkerPattern]]:
    """The patterns of windows of one job; groups whose name several bear have their members behind it, everywhere."""
    members: dict[str, set[_Members]] = defaultdict(set)
    for pattern in chain.from_iterable(windows):
        for group in pattern.process_groups:
            if group.ranks:
                members[group.name].add(_members(group))
    shared = {name for name, found in members.items() if len(found) > 1}
    if not shared:
        return list(windows)
    return [[_renamed(pattern, shared) for pattern in patterns] for patterns in windows]


def _members(group: ProcessGroup) -> _Members:
    return len(group.ranks), group.ranks[0], group.ranks[-1]


def _renamed(pattern: WorkerPattern, shared: Collection[str]) -> WorkerPattern:
    names = {
        group.name: f"{group.name} (ranks {group.ranks[0]} to {group.ranks[-1]})"
        for group in pattern.process_groups
        if group.name in shared and group.ranks
    }
    if not names:
        return pattern
    return msgspec.structs.replace(
        pattern,
        process_groups=tuple(
            msgspec.structs.replace(group, name=names.get(group.name, group.name)) for group in pattern.process_groups
        ),
        collectives=tuple(
            msgspec.structs.replace(record, group=names.get(record.group, record.group))
            for record in pattern.collectives
        ),
        functions=tuple(
            msgspec.structs.replace(row, key=_key(row.key, names)) if row.key.group in names else row
            for row in pattern.functions
        ),
    )


def _key(key: FunctionKey, names: Mapping[str, str]) -> FunctionKey:
    return msgspec.structs.replace(key, group=names[key.group])
