"""Assign roles to workers: only workers of one role are compared with each other.

A role is read from process groups: who is in which, at which place of a pipeline, and what a group is used for.
Timings, or who runs which function, would excuse a culprit as a role of its own; so what only rank 0 does (progress,
checkpoints, metrics) is no role either, but excess time of rank 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.localize.stage_order import order_stages
from eroica.model.axes import axis_of
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import decode_series
from eroica.model.worker import ProcessGroup
from eroica.stated_roles import check_ranks, parse_roles

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
    known: set[tuple[str, int, int, int]] = set()
    for pattern in patterns:
        for group in pattern.process_groups:
            first, last = (group.ranks[0], group.ranks[-1]) if group.ranks else (-1, -1)
            key = (group.name, len(group.ranks), first, last)
            if key not in known:
                known.add(key)
                yield group


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
