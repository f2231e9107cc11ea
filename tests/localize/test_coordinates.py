from __future__ import annotations

import pytest

from eroica.localize.roles import Coordinates, coordinates_of, shared_coordinate
from eroica.model.axes import axis_of
from eroica.model.pattern import WorkerPattern
from eroica.model.worker import ProcessGroup, Worker


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("mesh_pp", "stage"),
        ("mesh_tp", "tensor"),
        ("mesh_cp", "context"),
        ("mesh_ep", "expert"),
        ("mesh_dp", "data"),
        ("mesh_dp_shard", "shard"),
        ("mesh_dp_replicate", "replica"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "stage"),
        ("CONTEXT_PARALLEL_GROUP", "context"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("DATA_PARALLEL_GROUP", "data"),
        ("DATA_PARALLEL_GROUP_GLOO", "data"),
        ("mesh_dp_shard_cp", None),
        ("DATA_PARALLEL_GROUP_WITH_CP", None),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", None),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", None),
        ("MODEL_PARALLEL_GROUP", None),
        ("EMBEDDING_GROUP", None),
        ("pipeline_embedding", None),
        ("default_pg", None),
        ("undefined", None),
        ("mesh_dim_0", None),
        ("", None),
    ],
)
def test_the_axis_of_a_group_is_read_from_its_description(description: str, axis: str | None) -> None:
    assert axis_of(description) == axis


def pattern(rank: int, *groups: tuple[str, tuple[int, ...]]) -> WorkerPattern:
    return WorkerPattern(
        worker=Worker(global_rank=rank),
        window_id=1,
        first_iteration=0,
        last_iteration=1,
        duration_s=1.0,
        iteration_us=b"",
        wait_us=b"",
        functions=(),
        process_groups=tuple(ProcessGroup(name=str(n), description=d, ranks=r) for n, (d, r) in enumerate(groups)),
    )


def test_a_worker_is_described_by_its_places() -> None:
    found = coordinates_of(pattern(11, ("mesh_pp", (3, 11)), ("mesh_tp", (8, 9, 10, 11)), ("default_pg", (3, 8, 11))))
    assert (found.places, found.sizes) == ({"stage": 1, "tensor": 3}, {"stage": 2, "tensor": 4})
    assert str(found) == "stage 1, tensor rank 3"


def test_an_axis_of_one_place_tells_nothing() -> None:
    assert str(coordinates_of(pattern(0, ("mesh_tp", (0,)), ("mesh_dp", (0, 1))))) == "data rank 0"


def test_what_some_share_and_nobody_else_has_is_told() -> None:
    grid = [Coordinates(places={"data": data, "tensor": tensor}) for data in range(2) for tensor in range(2)]
    assert shared_coordinate([grid[1], grid[3]], [grid[0], grid[2]]) == "tensor rank 1"
    assert shared_coordinate([grid[0], grid[1]], [grid[2], grid[3]]) == "data rank 0"
    assert shared_coordinate([grid[0], grid[3]], [grid[1], grid[2]]) == ""
    assert shared_coordinate([grid[1]], [grid[0], grid[2], grid[3]]) == ""
