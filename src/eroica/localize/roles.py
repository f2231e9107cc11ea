"""Which workers may be compared: those that play the same role.

A role is read from process groups: who is in which, and at which place of a pipeline. Timings, or who runs which
function, would excuse a culprit as a role of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import WorkerPattern
from eroica.model.worker import ProcessGroup

#: Words of a group's description that name the axis along which members hold different layers.
_STAGE_WORDS = frozenset({"pp", "pipe", "pipeline", "stage", "stages"})
_POINT_TO_POINT = frozenset({"send", "recv"})


def assign_roles(patterns: Sequence[WorkerPattern]) -> NDArray[np.intp]:
    """Role of each worker, numbered from 0 in order of appearance.

    Where a group is described as a pipeline ("mesh_pp", "PIPELINE_MODEL_PARALLEL_GROUP"), the place in it is the role.
    Else workers that share a group smaller than the job are alike, as data, tensor and expert parallel members are, and
    so are those they are connected with; groups that only send and receive connect stages and make nobody alike.
    A job whose only group holds everybody (plain data parallel) is one role.

    Args:
        patterns: One per worker; only rank, `process_groups` and the kinds of `collectives` are read.

    Returns:
        Role numbers. intp [W].

    Source:
        EROICA, section 4.3 compares all workers with all. Roles are ours: one pipeline stage of eight may differ.
    """
    stages = [_stage(pattern) for pattern in patterns]
    if any(stages):
        return _numbered(stages)
    used = _used_groups(patterns)
    return _numbered(_components(patterns, used))


def stage_of(pattern: WorkerPattern) -> int | None:
    """A worker's place in its pipeline, 0 = first stage; None where no group is described as one, or several are."""
    places = {place for _, place in _stage(pattern)}
    return places.pop() if len(places) == 1 else None


def _stage(pattern: WorkerPattern) -> tuple[tuple[str, int], ...]:
    """Places of a worker in its pipelines: (description, place), without groups of one."""
    rank = pattern.worker.global_rank
    places = {
        (group.description, group.ranks.index(rank))
        for group in pattern.process_groups
        if len(group.ranks) > 1 and rank in group.ranks and _is_pipeline(group)
    }
    return tuple(sorted(places))


def _is_pipeline(group: ProcessGroup) -> bool:
    return not _STAGE_WORDS.isdisjoint(group.description.lower().replace("-", "_").split("_"))


def _used_groups(patterns: Sequence[WorkerPattern]) -> set[str] | None:
    """Names of groups that ran anything but send and receive; None where no collective was recorded at all."""
    records = [record for pattern in patterns for record in pattern.collectives]
    return {record.group for record in records if record.kind not in _POINT_TO_POINT} if records else None


def _components(patterns: Sequence[WorkerPattern], used: set[str] | None) -> list[int]:
    """Smallest rank each worker is connected with through groups smaller than the job; -1 without such a group."""
    everybody = {pattern.worker.global_rank for pattern in patterns}
    linked: dict[int, int] = {}
    for pattern in patterns:
        for group in pattern.process_groups:
            members = everybody & set(group.ranks)
            if len(group.ranks) > 1 and members < everybody and (used is None or group.name in used):
                _link(linked, members)
    ranks = [pattern.worker.global_rank for pattern in patterns]
    return [_root(linked, rank) if rank in linked else -1 for rank in ranks]


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
