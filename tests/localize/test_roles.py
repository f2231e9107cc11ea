from __future__ import annotations

import msgspec

from eroica.localize.roles import assign_roles
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.worker import ProcessGroup, Worker
from eroica.testing import FleetPlan, SlowLoader, synthesize

WORLD = ("0", "default_pg", (0, 1, 2, 3))
PAIRS, ACROSS = ((0, 1), (2, 3)), ((0, 2), (1, 3))
NOTHING = {
    "paired_by": "none",
    "executions": 0,
    "sequence": b"",
    "iteration": b"",
    "duration_us": b"",
    "critical_us": b"",
}


def groups_of(pairs: str, across: str) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """The default group, two groups of neighbours and two across."""
    names = (("1", pairs, PAIRS[0]), ("2", pairs, PAIRS[1]), ("3", across, ACROSS[0]), ("4", across, ACROSS[1]))
    return (WORLD, *names)


def pattern(
    rank: int, *groups: tuple[str, str, tuple[int, ...]], used: tuple[tuple[str, str], ...] = ()
) -> WorkerPattern:
    return WorkerPattern(
        worker=Worker(global_rank=rank),
        window_id=1,
        first_iteration=0,
        last_iteration=1,
        duration_s=1.0,
        iteration_us=b"",
        wait_us=b"",
        functions=(),
        process_groups=tuple(ProcessGroup(name=n, description=d, ranks=r) for n, d, r in groups if rank in r),
        collectives=tuple(CollectiveRecord(group=group, kind=kind, **NOTHING) for group, kind in used),
    )


def test_plain_data_parallel_is_one_role() -> None:
    assert assign_roles([pattern(rank, WORLD) for rank in range(4)]).tolist() == [0, 0, 0, 0]


def test_workers_without_any_group_are_one_role() -> None:
    assert assign_roles([pattern(rank) for rank in range(3)]).tolist() == [0, 0, 0]


def test_a_described_pipeline_gives_a_role_to_each_stage() -> None:
    groups = (
        WORLD,
        ("1", "mesh_pp", (0, 1)),
        ("2", "mesh_pp", (2, 3)),
        ("3", "mesh_dp", (0, 2)),
        ("4", "mesh_dp", (1, 3)),
    )
    assert assign_roles([pattern(rank, *groups) for rank in range(4)]).tolist() == [0, 1, 0, 1]


def test_megatron_names_its_pipeline_in_capitals() -> None:
    groups = (WORLD, ("1", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 2)), ("2", "PIPELINE_MODEL_PARALLEL_GROUP", (1, 3)))
    assert assign_roles([pattern(rank, *groups) for rank in range(4)]).tolist() == [0, 0, 1, 1]


def test_undescribed_data_parallel_groups_of_two_stages_are_two_roles() -> None:
    groups = (WORLD, ("1", "undefined", (0, 2)), ("2", "undefined", (1, 3)))
    assert assign_roles([pattern(rank, *groups) for rank in range(4)]).tolist() == [0, 1, 0, 1]


def test_tensor_and_data_parallel_members_are_alike() -> None:
    groups = (
        WORLD,
        ("1", "mesh_tp", (0, 1)),
        ("2", "mesh_tp", (2, 3)),
        ("3", "mesh_dp", (0, 2)),
        ("4", "mesh_dp", (1, 3)),
    )
    assert assign_roles([pattern(rank, *groups) for rank in range(4)]).tolist() == [0, 0, 0, 0]


def test_a_group_that_only_sends_and_receives_makes_nobody_alike() -> None:
    groups = groups_of("", "")
    used = (("1", "send"), ("2", "recv"), ("3", "all_reduce"), ("4", "all_reduce"))
    assert assign_roles([pattern(rank, *groups, used=used) for rank in range(4)]).tolist() == [0, 1, 0, 1]


def test_a_group_of_a_host_that_nobody_used_makes_no_role() -> None:
    groups = (WORLD, ("1", "checkpoint", (0, 1)), ("2", "checkpoint", (2, 3)))
    patterns = [pattern(rank, *groups, used=(("0", "all_reduce"),)) for rank in range(4)]
    assert assign_roles(patterns).tolist() == [0, 0, 0, 0]


def test_timings_and_functions_change_no_role() -> None:
    healthy = synthesize(FleetPlan(workers=8, stages=2))
    slow = synthesize(FleetPlan(workers=8, stages=2), [SlowLoader((3,), 500)])
    silent = [msgspec.structs.replace(one, functions=()) for one in slow]
    expected = [0, 1] * 4
    assert [assign_roles(some).tolist() for some in (healthy, slow, silent)] == [expected] * 3
