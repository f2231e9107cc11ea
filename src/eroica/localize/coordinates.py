"""Read a worker's place in the job: pipeline stage, tensor, context, expert and data parallel rank.

Read from the descriptions that frameworks give their process groups ("mesh_dp_shard", "TENSOR_MODEL_PARALLEL_GROUP")
and from the worker's place in them. Groups without a description (DeepSpeed, old Megatron: "undefined") tell nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from eroica.model.axes import Axis, axis_of
from eroica.model.pattern import WorkerPattern

_ORDER: tuple[Axis, ...] = ("stage", "replica", "data", "shard", "context", "expert", "tensor")
_NAMES: dict[Axis, str] = {
    "stage": "stage {}",
    "tensor": "tensor rank {}",
    "context": "context rank {}",
    "expert": "expert rank {}",
    "replica": "replica {}",
    "shard": "shard {}",
    "data": "data rank {}",
}


class Coordinates(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's place along each axis that is split among workers and described as such.

    Attributes:
        places: Axis -> place, 0 = first.
        sizes: Axis -> how many places there are.
    """

    places: dict[Axis, int] = {}
    sizes: dict[Axis, int] = {}

    def __str__(self) -> str:
        """Write the place for a sentence: "stage 1, tensor rank 3"; "" where nothing is known."""
        return ", ".join(_NAMES[axis].format(self.places[axis]) for axis in _ORDER if axis in self.places)


def coordinates_of(pattern: WorkerPattern) -> Coordinates:
    """Coordinates of a worker from its described groups; of several groups of one axis the largest counts."""
    rank = pattern.worker.global_rank
    places: dict[Axis, int] = {}
    sizes: dict[Axis, int] = {}
    for group in pattern.process_groups:
        axis = axis_of(group.description)
        if axis is not None and len(group.ranks) > max(sizes.get(axis, 1), 1) and rank in group.ranks:
            places[axis], sizes[axis] = group.ranks.index(rank), len(group.ranks)
    return Coordinates(places=places, sizes=sizes)


def shared_coordinate(some: Sequence[Coordinates], others: Sequence[Coordinates]) -> str:
    """The one coordinate that some workers share and none of the others has: "tensor rank 3"; "" without one."""
    for axis in _ORDER:
        places = {one.places.get(axis) for one in some}
        place = places.pop() if len(places) == 1 else None
        if place is not None and all(one.places.get(axis) != place for one in others):
            return _NAMES[axis].format(place)
    return ""
