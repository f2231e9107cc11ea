"""Assign roles to workers: only workers of one role are compared with each other.

A role is read from process groups: who is in which, at which place of a pipeline, and what a group is used for.
Timings, or who runs which function, would excuse a culprit as a role of its own; so what only rank 0 does (progress,
checkpoints, metrics) is no role either, but excess time of rank 0.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import decode_series
from eroica.model.worker import ProcessGroup, axis_of
from eroica.settings import check_ranks, parse_roles

_POINT_TO_POINT = frozenset({"send", "recv"})
_REDUCING = frozenset({"all_reduce", "reduce_scatter"})
#: What members do together; any other kind (a batch of sends and receives, of which nothing is known) may join stages.
_TOGETHER = _REDUCING | {"all_gather", "all_to_all", "barrier", "broadcast", "reduce", "gather", "scatter"}
#: Gradients have more elements than this, losses and norms fewer; and no less than this share of what smaller groups
#: reduce at once for all of their members (activations are scattered, or gathered).
_FEW_ELEMENTS = 1024
_LEAST_SHARE = 0.1
#: So many workers are asked what the job's own group is used for.
_ASKED = 8


def assign_roles(patterns: Sequence[WorkerPattern], stated: str = "") -> NDArray[np.intp]:
    """Role of each worker, numbered from 0 in order of appearance.

    The first of these that says anything:

    1. What a person states; all others are one role of their own.
    2. Groups described as pipelines ("mesh_pp", "PIPELINE_MODEL_PARALLEL_GROUP"): the place in them; where each holds
       two neighbours only, the place in the line that they make together.
    3. The order of sends and receives, if it gives everybody a place.
    4. If everybody reduces gradients together (and nobody sends or receives), everybody holds the same layers: all are
       one role.
    5. Workers that share a group smaller than the job are alike, as data, tensor, context and expert parallel members
       are, and so are those they are connected with. Groups that only send and receive, or reduce nothing but single
       numbers where there is a pipeline, make nobody alike.

    Args:
        patterns: One per worker; only rank, `process_groups` and `collectives` are read.
        stated: The setting `roles`.

    Returns:
        Role numbers. intp [W].

    Raises:
        UsageError: `stated` has another form or names ranks that the job does not have.

    Source:
        EROICA, section 4.3 compares all workers with all. Roles are ours: one pipeline stage of eight may differ.
    """
    if stated:
        return _numbered(_stated(patterns, stated))
    line = _places_in_line(patterns)
    if line is not None:
        return _numbered(line)
    stages = [_stage(pattern) for pattern in patterns]
    if any(stages):
        return _numbered(stages)
    places = order_stages(patterns)
    if places is not None:
        return _numbered(places)
    records = [record for pattern in patterns for record in pattern.collectives]
    has_pipeline = any(record.kind in _POINT_TO_POINT for record in records)
    if not has_pipeline and _reduce_together(patterns):
        return np.zeros(len(patterns), dtype=np.intp)
    return _numbered(_components(patterns, _used_groups(records, has_pipeline)))


def stages_of(patterns: Sequence[WorkerPattern]) -> list[int | None]:
    """Each worker's place in its pipeline, 0 = first stage; None where nothing tells one, or several are told."""
    line = _places_in_line(patterns)
    if line is not None:
        return [*line]
    described = [stage_of(pattern) for pattern in patterns]
    if any(place is not None for place in described):
        return described
    return [*(order_stages(patterns) or described)]


def stage_of(pattern: WorkerPattern) -> int | None:
    """A worker's place in its pipeline, 0 = first stage; None where no group is described as one, or several are."""
    places = {place for _, place, _ in _stage(pattern)}
    return places.pop() if len(places) == 1 else None


def _stated(patterns: Sequence[WorkerPattern], text: str) -> list[str]:
    roles = parse_roles(text)
    world = max(max(pattern.worker.world_size, pattern.worker.global_rank + 1) for pattern in patterns)
    check_ranks(roles, world)
    names = {rank: name for name, ranks in roles.items() for rank in ranks}
    return [names.get(pattern.worker.global_rank, "") for pattern in patterns]


def _stage(pattern: WorkerPattern) -> tuple[tuple[str, int, int], ...]:
    """Places of a worker in its pipelines: (description, place, stages), without groups of one."""
    rank = pattern.worker.global_rank
    places = {
        (group.description, group.ranks.index(rank), len(group.ranks))
        for group in pattern.process_groups
        if len(group.ranks) > 1 and axis_of(group.description) == "stage" and rank in group.ranks
    }
    return tuple(sorted(places))


def _places_in_line(patterns: Sequence[WorkerPattern]) -> list[int] | None:
    """Place of each worker in the line of stages that pairs of neighbours make; None where there is no such line.

    Members of a pair stand in the order of their stages. Pairs that close a ring (interleaved stages) tell no order.
    """
    pairs = {
        group.ranks
        for pattern in patterns
        for group in pattern.process_groups
        if len(group.ranks) == 2 and axis_of(group.description) == "stage"
    }
    ranks = {pattern.worker.global_rank for pattern in patterns}
    if not ({first for first, _ in pairs} & {second for _, second in pairs}) or not ranks <= {*chain(*pairs)}:
        return None
    before: dict[int, set[int]] = {rank: set() for rank in chain(*pairs)}
    for first, second in pairs:
        before[second].add(first)
    try:
        order = tuple(TopologicalSorter(before).static_order())
    except CycleError:
        return None
    places: dict[int, int] = {}
    for rank in order:
        places[rank] = max((places[one] + 1 for one in before[rank]), default=0)
    return [places[pattern.worker.global_rank] for pattern in patterns]


def _reduce_together(patterns: Sequence[WorkerPattern]) -> bool:
    """Return whether gradients are reduced over all workers of the job."""
    for pattern in patterns[:_ASKED]:
        world = max(pattern.worker.world_size, len(patterns))
        whole = {group.name for group in pattern.process_groups if len(group.ranks) >= world > 1}
        own, others = (
            [one for one in pattern.collectives if (one.group in whole) == is_whole] for is_whole in (True, False)
        )
        most = max((_most_elements(one) for one in own if one.kind in _REDUCING), default=0)
        elsewhere = max((_most_elements(one) for one in others if one.kind == "all_reduce"), default=0)
        if most <= max(_FEW_ELEMENTS, _LEAST_SHARE * elsewhere):
            return False
    return bool(patterns)


def _most_elements(record: CollectiveRecord) -> int:
    """Elements of the largest execution, 0 if unknown."""
    try:
        return int(decode_series(record.elements, np.int64).max(initial=0))
    except InputError:
        return 0


def _used_groups(records: Sequence[CollectiveRecord], has_pipeline: bool) -> set[str] | None:
    """Names of groups that make workers alike; None where no collective was recorded at all."""
    if not records:
        return None
    used: set[str] = set()
    for record in records:
        if record.group not in used and record.kind in _TOGETHER:
            few = 0 < _most_elements(record) <= 1 if has_pipeline and record.kind in _REDUCING else False
            if not few:
                used.add(record.group)
    return used


def _components(patterns: Sequence[WorkerPattern], used: set[str] | None) -> list[int]:
    """Smallest rank each worker is connected with through groups smaller than the job; -1 without such a group."""
    everybody = {pattern.worker.global_rank for pattern in patterns}
    linked: dict[int, int] = {}
    for group in _distinct(patterns):
        if len(group.ranks) > 1 and (used is None or group.name in used):
            members = everybody.intersection(group.ranks)
            if len(members) < len(everybody):
                _link(linked, members)
    ranks = [pattern.worker.global_rank for pattern in patterns]
    return [_root(linked, rank) if rank in linked else -1 for rank in ranks]


def _distinct(patterns: Sequence[WorkerPattern]) -> Iterator[ProcessGroup]:
    """Each group once. Groups that were split off together may share a name."""
    groups = (group for pattern in patterns for group in pattern.process_groups if group.ranks)
    yield from {(group.name, *_members(group)): group for group in groups}.values()


def _link(linked: dict[int, int], members: Iterable[int]) -> None:
    roots = sorted({_root(linked, linked.setdefault(rank, rank)) for rank in members})
    for root in roots[1:]:
        linked[root] = roots[0]


def _root(linked: dict[int, int], rank: int) -> int:
    while linked[rank] != rank:
        linked[rank] = linked[linked[rank]]
        rank = linked[rank]
    return rank


def _numbered(labels: Sequence[object]) -> NDArray[np.intp]:
    numbers: dict[object, int] = {}
    return np.asarray([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.intp)


# --- the members of each role, as index arrays ---


#: Role numbers below this sort as 16-bit integers, in one pass.
_SMALL = 1 << 16


def members_of(roles_W: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Indices of the workers of each role, in order of role and worker.

    Args:
        roles_W: Role of each worker, not negative. intp [W].
    """
    if not roles_W.size:
        return []
    highest = int(roles_W.max())
    if highest == int(roles_W.min()):
        return [np.arange(roles_W.size, dtype=np.intp)]
    order = np.argsort(roles_W.astype(np.uint16) if highest < _SMALL else roles_W, kind="stable")
    edges = np.flatnonzero(np.diff(roles_W[order])) + 1
    return np.split(order, edges)


# --- process groups that share a name though their members differ, told apart ---


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
            msgspec.structs.replace(row, key=msgspec.structs.replace(row.key, group=names[row.key.group]))
            if row.key.group in names
            else row
            for row in pattern.functions
        ),
    )


# --- find places in pipelines whose process groups do not tell them: from the order of sends and receives ---


#: Of the iterations in which two workers talk, so many must show the same order.
_MOST = 0.6


def order_stages(patterns: Sequence[WorkerPattern]) -> list[int] | None:
    """Find the place of each worker in its pipeline, 0 = first stage; None unless sends and receives tell it of all.

    Args:
        patterns: One per worker; of them sends and receives with known peers are read: their order by start where ends
            were written down, else by the group's own sequence numbers. Never how long anything took.
    """
    if not all(any(record.kind in ("send", "recv") for record in pattern.collectives) for pattern in patterns):
        return None
    try:
        leads = {pattern.worker.global_rank: _leads(pattern) for pattern in patterns}
    except InputError:  # a damaged record costs the order, no more
        return None
    after = _edges(leads)
    if _is_exchange(after):
        return None
    places = _distances([rank for rank in leads if leads[rank].get(-1)], after)
    ranks = [pattern.worker.global_rank for pattern in patterns]
    return [places[rank] for rank in ranks] if all(rank in places for rank in ranks) and any(after.values()) else None


def _leads(pattern: WorkerPattern) -> dict[int, bool]:
    """Tell for each peer whether this worker sends to it before receiving from it; -1 stands for all peers together."""
    votes: dict[int, list[bool]] = defaultdict(list)
    for sends, receives in _both_ways(pattern.collectives):
        for peer in (*np.intersect1d(sends[0], receives[0]).tolist(), -1):
            votes[peer] += _votes(sends, receives, peer)
    shares = {peer: sum(own) / len(own) for peer, own in votes.items() if own}
    return {peer: share >= _MOST for peer, share in shares.items() if share >= _MOST or share <= 1 - _MOST}


_Moves = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]


def _both_ways(records: Sequence[CollectiveRecord]) -> Iterator[tuple[_Moves, _Moves]]:
    """Peers, iterations and times of the sends and of the receives of each group with both."""
    groups: dict[str, dict[str, CollectiveRecord]] = defaultdict(dict)
    for record in records:
        if record.kind in ("send", "recv") and record.peers:
            groups[record.group][record.kind] = record
    for both in groups.values():
        if len(both) == 2:
            timed = all(record.end_us for record in both.values())
            if timed or all(record.paired_by == "sequence" for record in both.values()):
                yield _moves(both["send"], timed), _moves(both["recv"], timed)


def _moves(record: CollectiveRecord, timed: bool) -> _Moves:
    peers, iterations = decode_series(record.peers, np.int32), decode_series(record.iteration, np.int32)
    if timed:
        end_us = decode_series(record.end_us, np.float64)
        return peers, iterations, end_us - decode_series(record.duration_us, np.float32)
    return peers, iterations, decode_series(record.sequence, np.int64).astype(np.float64)


def _votes(sends: _Moves, receives: _Moves, peer: int) -> list[bool]:
    """Iteration by iteration, whether the first move is a send; iterations without both are left out."""
    first = [_first(moves, peer) for moves in (sends, receives)]
    return [first[0][at] < first[1][at] for at in first[0].keys() & first[1].keys()]


def _first(moves: _Moves, peer: int) -> Mapping[int, float]:
    peers, iterations, times = moves
    chosen = (iterations >= 0) & ((peers == peer) if peer >= 0 else True)
    found: dict[int, float] = {}
    for iteration, time in zip(iterations[chosen].tolist(), times[chosen].tolist(), strict=True):
        found[iteration] = min(time, found.get(iteration, time))
    return found


def _edges(leads: Mapping[int, Mapping[int, bool]]) -> dict[int, set[int]]:
    """Map each worker to the workers after it; two workers that contradict each other have no order."""
    after: dict[int, set[int]] = defaultdict(set)
    for rank, peers in leads.items():
        for peer, first in peers.items():
            back = leads.get(peer, {}).get(rank)
            if peer >= 0 and back is not first:
                after[rank if first else peer].add(peer if first else rank)
    return after


def _is_exchange(after: Mapping[int, set[int]]) -> bool:
    """Return whether each worker either leads or follows, and leaders share followers without sharing all of them.

    In two stages of which each worker sends to each of the next, leaders share all followers: no exchange.
    """
    before = Counter(rank for followers in after.values() for rank in followers)
    several = any(before[rank] > 1 for followers in after.values() if len(followers) > 1 for rank in followers)
    same = len({frozenset(followers) for followers in after.values()}) == 1  # two stages, each worker to each
    return several and not same and not before.keys() & after.keys()


def _distances(sources: Sequence[int], after: Mapping[int, set[int]]) -> dict[int, int]:
    """Steps from the nearest first stage; interleaved stages come back to it, which counts no further."""
    places = dict.fromkeys(sources, 0)
    queue = deque(sources)
    while queue:
        rank = queue.popleft()
        for peer in sorted(after.get(rank, ())):
            if peer not in places:
                places[peer] = places[rank] + 1
                queue.append(peer)
    return places
