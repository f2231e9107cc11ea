"""Ranks from the names of files and directories."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from eroica.errors import UsageError
from eroica.trace.names import compile_rule, rank_of_dump, rank_of_name, read_name

RANKED = {
    "rank0_trace.json.gz": 0,
    "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": 0,
    "trace_8_rank_1.json": 1,
    "Rank 4.json": 4,
    "rank00003.json": 3,
    "worker7_step_12.1694128201553.pt.trace.json": 7,
    "dp0_pp0_tp1_rank5.1700000000000.pt.trace.json.gz": 5,
    "1700000000.12-TP-1.trace.json.gz": 1,
    "profile_3.json": 3,
    "run_r12_x.json": 12,
    "_dump_12": 12,
}
NOT_RANKED = [
    "host-a_171.1694128201553.pt.trace.json",
    "job-worker-3_171.1694128201553.pt.trace.json",  # a pod called worker-3, process 171
    "libkineto_trace_171.json",
    "1700000000.12-TP-1-DP-2.trace.json.gz",
    "local_rank3.json",
    "trace_3.json",
    "resnet50_num_workers_4.json",
    "frank3.json",
    "resnet_no_anno_trace_iters.json",
    "",
    "rank" + "9" * 30 + ".json",
]


@pytest.mark.parametrize(("name", "rank"), RANKED.items())
def test_a_name_of_the_ecosystem_states_its_rank(name: str, rank: int) -> None:
    assert rank_of_name(name) == rank


@pytest.mark.parametrize("name", NOT_RANKED)
def test_a_number_that_is_no_global_rank_is_not_taken_for_one(name: str) -> None:
    assert rank_of_name(name) == -1


@pytest.mark.parametrize(
    ("path", "rank", "place"),
    [
        ("run/rank_3/trace.json", 3, "run/rank_*"),
        ("run/rank3/plugins/profile/trace.json", 3, "run/rank*/plugins/profile"),
        ("run/worker12/a.json", 12, "run/worker*"),
        ("iteration_10/rank0_trace.json", 0, "iteration_10"),
        ("rank_1/rank2.json", 2, "rank_1"),
        ("ranks8/trace.json", -1, "ranks8"),
        ("resnet50_num_workers_4/host_1.1694128201553.pt.trace.json", -1, "resnet50_num_workers_4"),
    ],
)
def test_a_directory_of_each_rank_is_shared_by_all_ranks(path: str, rank: int, place: str) -> None:
    named = read_name(PurePath(path))
    assert (named.rank, named.place) == (rank, place)


def test_the_users_own_rule_replaces_ours_in_names_and_in_directories() -> None:
    rule = compile_rule(r"gpu(\d+)")
    assert read_name(PurePath("a/rank1_gpu3.json"), rule).rank == 3
    above = read_name(PurePath("a/gpu4/trace.json"), rule)
    assert (above.rank, above.place) == (4, "a/gpu*")
    assert read_name(PurePath("a/rank1.json"), rule).rank == -1
    assert read_name(PurePath("a/gpux/rank1.json"), compile_rule("gpu(.)")).rank == -1


@pytest.mark.parametrize("text", ["rank", r"(\d)(\d)", "(", r"rank(?:\d+)"])
def test_a_rule_without_one_group_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="rank regex"):
        compile_rule(text)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("fr_trace_3.json", 3),
        ("my_prefix7", 7),
        ("nccl_trace_rank_9", 9),
        ("_dump_123456789", None),
        ("local_rank3", None),
    ],
)
def test_a_dump_ends_in_its_rank_whatever_it_is_called(name: str, rank: int | None) -> None:
    assert rank_of_dump(name) == rank
