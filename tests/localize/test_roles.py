from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.errors import UsageError
from eroica.localize.fleet import build_fleet
from eroica.localize.roles import assign_roles, stages_of
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.worker import ProcessGroup, Worker
from eroica.settings import Settings
from support import FleetPlan, SlowLoader, synthesize

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


def test_pipelines_of_pairs_of_neighbours_make_a_line() -> None:
    def paired(*ranks: tuple[int, int]) -> list[WorkerPattern]:
        groups = tuple((f"p{at}", "PIPELINE_MODEL_PARALLEL_GROUP", pair) for at, pair in enumerate(ranks))
        return [pattern(rank, *groups) for rank in sorted({one for pair in ranks for one in pair})]

    for pairs, places in (
        (((0, 1), (1, 2), (2, 3)), [0, 1, 2, 3]),
        (((0, 2), (2, 4), (1, 3), (3, 5)), [0, 0, 1, 1, 2, 2]),
        (((0, 2), (1, 3)), [0, 0, 1, 1]),
    ):
        assert stages_of(paired(*pairs)) == places
        assert assign_roles(paired(*pairs)).tolist() == places
    ring = paired((0, 1), (1, 2), (2, 0))
    assert stages_of(ring) == [None, None, None]


def test_timings_and_functions_change_no_role() -> None:
    healthy = synthesize(FleetPlan(workers=8, stages=2))
    slow = synthesize(FleetPlan(workers=8, stages=2), [SlowLoader((3,), 500)])
    silent = [msgspec.structs.replace(one, functions=()) for one in slow]
    expected = [0, 1] * 4
    assert [assign_roles(some).tolist() for some in (healthy, slow, silent)] == [expected] * 3


# --- what frameworks call their groups ---


def test_megatrons_group_over_three_axes_is_no_pipeline_although_its_name_says_so() -> None:
    """Each of its members has a place of its own in it, which would make each a role."""
    groups = (
        WORLD,
        ("1", "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", (0, 1, 2, 3)),
        ("2", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 2)),
        ("3", "PIPELINE_MODEL_PARALLEL_GROUP", (1, 3)),
        ("4", "EMBEDDING_GROUP", (0, 2)),
    )
    assert assign_roles([pattern(rank, *groups) for rank in range(4)]).tolist() == [0, 0, 1, 1]


def test_a_mesh_over_pipeline_data_and_tensor_gives_a_role_to_each_stage_only() -> None:
    """Two of each, rank = 4 * stage + 2 * data + tensor."""
    groups = [WORLD]
    groups += [(f"p{n}", "mesh_pp", (n, n + 4)) for n in range(4)]
    groups += [(f"d{s}{t}", "mesh_dp_shard", (4 * s + t, 4 * s + t + 2)) for s in (0, 1) for t in (0, 1)]
    groups += [(f"t{s}{d}", "mesh_tp", (4 * s + 2 * d, 4 * s + 2 * d + 1)) for s in (0, 1) for d in (0, 1)]
    assert assign_roles([pattern(rank, *groups) for rank in range(8)]).tolist() == [0] * 4 + [1] * 4


# --- what groups are used for ---


def reduces(group: str, elements: int) -> CollectiveRecord:
    return CollectiveRecord(
        group=group,
        kind="all_reduce",
        **{**NOTHING, "executions": 1, "elements": encode_series(np.asarray([elements], dtype=np.int64))},
    )


def with_records(one: WorkerPattern, *records: CollectiveRecord) -> WorkerPattern:
    return msgspec.structs.replace(one, collectives=(*one.collectives, *records))


@pytest.mark.parametrize(("elements", "roles"), [(1_000_000, [0, 0, 0, 0]), (1, [0, 0, 1, 1])])
def test_who_reduces_gradients_with_everybody_holds_the_same_layers_whatever_smaller_groups_there_are(
    elements: int, roles: list[int]
) -> None:
    groups = (WORLD, ("1", "", PAIRS[0]), ("2", "", PAIRS[1]))
    used = (("1", "all_to_all"), ("2", "all_to_all"))
    patterns = [with_records(pattern(rank, *groups, used=used), reduces("0", elements)) for rank in range(4)]
    assert assign_roles(patterns).tolist() == roles


@pytest.mark.parametrize(("world", "own", "roles"), [(4_096, 1 << 20, [0, 0, 1, 1]), (4_096, 64, [0, 0, 0, 0])])
def test_a_world_wide_sum_far_smaller_than_what_groups_reduce_by_themselves_is_none_of_gradients(
    world: int, own: int, roles: list[int]
) -> None:
    groups = (WORLD, ("1", "", PAIRS[0]), ("2", "", PAIRS[1]))
    patterns = [
        with_records(pattern(rank, *groups), reduces("0", world), reduces("1" if rank < 2 else "2", own))
        for rank in range(4)
    ]
    assert assign_roles(patterns).tolist() == roles


# --- the order of sends and receives ---


def stage(rank: int, before: int | None, after: int | None, timed: bool, groups: tuple = (WORLD,)) -> WorkerPattern:
    """A stage in two iterations of two microbatches: receive, send, then gradients the other way."""
    moves: list[tuple[str, int, int]] = []
    for iteration in range(2):
        for peer_in, peer_out in ((before, after), (after, before)):
            for _ in range(2):
                moves += [("recv", peer_in, iteration)] if peer_in is not None else []
                moves += [("send", peer_out, iteration)] if peer_out is not None else []
    return moving(rank, moves, timed, groups)


def moving(rank: int, moves: list[tuple[str, int, int]], timed: bool, groups: tuple = (WORLD,)) -> WorkerPattern:
    """A worker with these sends and receives: kind, peer and iteration of each, in order."""
    records = []
    for kind in ("send", "recv"):
        own = [(at, peer, iteration) for at, (name, peer, iteration) in enumerate(moves) if name == kind]
        at, peers, iterations = (np.asarray(column) for column in zip(*own, strict=True))
        records.append(
            CollectiveRecord(
                group="0",
                kind=kind,
                paired_by="order" if timed else "sequence",
                executions=len(own),
                sequence=encode_series((np.arange(len(own)) if timed else at).astype(np.int64)),
                iteration=encode_series(iterations.astype(np.int32)),
                duration_us=encode_series(np.full(len(own), 5.0, dtype=np.float32)),
                critical_us=encode_series(np.full(len(own), 5.0, dtype=np.float32)),
                peers=encode_series(peers.astype(np.int32)),
                end_us=encode_series(10.0 * at + 5, exact=True) if timed else b"",
            )
        )
    return with_records(pattern(rank, *groups), *records)


@pytest.mark.parametrize("timed", [True, False])
def test_stages_of_unlabelled_pipelines_lie_in_the_order_in_which_activations_run(timed: bool) -> None:
    """Two pipelines of three stages through ranks 0, 4, 2 and 1, 5, 3."""
    links = {0: (None, 4), 4: (0, 2), 2: (4, None), 1: (None, 5), 5: (1, 3), 3: (5, None)}
    patterns = [stage(rank, *links[rank], timed) for rank in range(6)]
    assert stages_of(patterns) == [0, 0, 2, 2, 1, 1]
    assert assign_roles(patterns).tolist() == [0, 0, 1, 1, 2, 2]


def test_groups_that_reduce_across_stages_do_not_make_stages_alike() -> None:
    """As the norm of gradients over a whole replica, or weights that the first and last stage share."""
    across = (WORLD, ("7", "undefined", (0, 1)))
    patterns = [
        with_records(stage(rank, *link, True, across), reduces("7", 5000))
        for rank, link in enumerate(((None, 1), (0, None)))
    ]
    assert assign_roles(patterns).tolist() == [0, 1]


def test_a_ring_is_no_pipeline() -> None:
    """Each sends to the next and receives from the one before, at once."""
    patterns = []
    for rank in range(4):
        both = []
        for kind, peer in (("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)):
            one = CollectiveRecord(
                group="0",
                kind=kind,
                **{
                    **NOTHING,
                    "paired_by": "order",
                    "executions": 3,
                    "iteration": encode_series(np.arange(3, dtype=np.int32)),
                    "duration_us": encode_series(np.full(3, 2.0, dtype=np.float32)),
                    "peers": encode_series(np.full(3, peer, dtype=np.int32)),
                    "end_us": encode_series(np.arange(3) * 10.0, exact=True),
                },
            )
            both.append(one)
        patterns.append(with_records(pattern(rank, WORLD), *both))
    assert stages_of(patterns) == [None] * 4
    assert assign_roles(patterns).tolist() == [0] * 4


# --- stated by hand ---


def test_stated_roles_come_before_all_others_and_who_is_in_none_is_one_more() -> None:
    patterns = synthesize(FleetPlan(workers=8, stages=2))
    assert assign_roles(patterns, "actor=0-3; critic=4,6").tolist() == [0, 0, 0, 0, 1, 2, 1, 2]
    assert build_fleet(patterns, Settings(roles="a=0;b=1-7")).roles.tolist() == [0] + [1] * 7


def test_stated_ranks_that_the_job_does_not_have_are_refused() -> None:
    with pytest.raises(UsageError, match=r"rank 8 to 'b', but this job has ranks 0 to 7 only"):
        assign_roles(synthesize(FleetPlan(workers=8)), "a=0-3;b=4-9")
