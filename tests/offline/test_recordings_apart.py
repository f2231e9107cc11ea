"""Several jobs and several recordings in one folder, told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from eroica.model.pattern import WorkerPattern
from eroica.model.series import encode_series
from eroica.model.trace import TraceSummary
from eroica.model.worker import Worker
from eroica.offline.jobs import Span, group

START = 1_700_000_000
S = 1_000_000_000


def recording(
    path: str,
    rank: int = 0,
    at_s: float = 0.0,
    steps: tuple[int, int] = (5, 9),
    place: str | None = None,
    **more: Any,
) -> tuple[str, TraceSummary]:
    start = int((START + at_s) * S) if at_s >= 0 else 0
    worker = Worker(global_rank=max(rank, 0), pid=more.pop("pid", 0))
    pattern = WorkerPattern(
        worker=worker,
        window_id=1,
        first_iteration=0,
        last_iteration=5,
        duration_s=1.0,
        iteration_us=encode_series(np.full(5, 2e5)),
        wait_us=b"",
        functions=(),
    )
    summary = TraceSummary(
        path=path,
        rank=rank,
        steps=steps,
        start_ns=start,
        end_ns=start + S,
        pattern=pattern,
        events=more.pop("events", 100 + rank),
        **more,
    )
    return path.rpartition("/")[0] if place is None else place, summary


def shape(spans: Sequence[Span]) -> list[tuple[str, list[int]]]:
    return [(span.job, [summary.rank for summary in span.summaries]) for span in spans]


def test_one_folder_of_ranks_is_one_span_in_order_of_rank() -> None:
    spans, _ = group([recording(f"runs/job/rank{rank}.json", rank) for rank in (3, 0, 2, 1)])
    assert shape(spans) == [("job", [0, 1, 2, 3])]
    assert spans[0].label == "steps 5–9" and not spans[0].notes


def test_recordings_of_different_steps_are_spans_of_their_own() -> None:
    files = [
        recording(f"job/worker{rank}.{n}.json", rank, 100 * n, (10 * n, 10 * n + 5)) for rank in (0, 1) for n in (1, 2)
    ]
    spans, _ = group(files)
    assert shape(spans) == [("job", [0, 1]), ("job", [0, 1])]
    assert [span.label for span in spans] == ["steps 10–15", "steps 20–25"]


def test_recordings_without_step_numbers_are_told_apart_by_time() -> None:
    none = (-1, -1)
    files = [recording(f"job/worker{rank}.{n}.json", rank, 20 * n + rank, none) for rank in (0, 1, 2) for n in (1, 2)]
    spans, _ = group([file for file in files if file[1].path != "job/worker2.1.json"])
    assert shape(spans) == [("job", [0, 1]), ("job", [0, 1, 2])]
    assert spans[0].label.startswith("recorded 2023-11-14")


def test_clocks_that_start_at_boot_do_not_tell_hosts_apart() -> None:
    files = [recording("job/worker0.json", 0, -1), recording("job/worker1.json", 1, 0)]
    assert shape(group(files)[0]) == [("job", [0, 1])]


def test_different_world_sizes_and_job_ids_are_different_jobs() -> None:
    sizes = [recording("all/a.json", 0, world_size=2), recording("all/b.json", 0, world_size=4, events=7)]
    assert shape(group(sizes)[0]) == [("all (2 workers)", [0]), ("all (4 workers)", [0])]
    ids = [recording("all/a.json", 0, job="one"), recording("all/b.json", 0, job="two")]
    assert shape(group(ids)[0]) == [("one", [0]), ("two", [0])]


def test_folders_are_jobs_of_their_own_with_names_that_tell_them_apart() -> None:
    files = [recording("x/one/profile/rank0.json", 0), recording("x/two/profile/rank0.json", 0)]
    assert [span.job for span in group(files)[0]] == ["one/profile", "two/profile"]


def test_directories_named_by_rank_hold_one_recording() -> None:
    files = [recording(f"runs/job/rank_{rank}/t.json", rank, place="runs/job/rank_*") for rank in (0, 1)]
    assert shape(group(files)[0]) == [("job", [0, 1])]


@pytest.mark.parametrize(
    ("more", "apart"),
    [
        ({}, False),
        ({"world_size": 8}, True),
        ({"at_s": 86_400}, True),
        ({"steps": (20, 25)}, True),
        ({"rank": 0}, True),
    ],
)
def test_sibling_directories_merge_only_if_their_workers_recorded_together(more: dict[str, Any], apart: bool) -> None:
    second = {"rank": 1, **more}
    spans, _ = group([recording("job/node-a/t.json", 0), recording("job/node-b/t.json", **second)])
    assert len(spans) == (2 if apart else 1)


def test_the_same_recording_under_two_names_counts_once() -> None:
    same = [recording(f"job/{name}.json", 0) for name in ("rank0", "copy_of_rank0")]
    spans, _ = group([*same, recording("job/r1.json", 1)])
    assert shape(spans) == [("job", [0, 1])]
    assert spans[0].notes == ("rank0.json is the same recording as copy_of_rank0.json; it counts once",)


def test_a_single_trace_without_a_rank_is_worker_0_and_says_so() -> None:
    spans, _ = group([recording("job/trace.json", -1)])
    assert shape(spans) == [("job", [0])]
    assert spans[0].notes == ("trace.json does not say its rank; it counts as worker 0",)
    pattern = spans[0].summaries[0].pattern
    assert pattern is not None and pattern.worker.global_rank == 0


def test_cycles_of_one_process_without_a_rank_are_recordings_of_worker_0() -> None:
    files = [recording(f"job/host_7.{n}.json", -1, 2 * n, (10 * n, 10 * n + 2), pid=7) for n in (1, 2, 3)]
    assert shape(group(files)[0]) == [("job", [0])] * 3


def test_several_workers_at_once_without_ranks_are_nobodys() -> None:
    spans, unranked = group(
        [recording(f"job/host_{pid}.json", -1, 0.1 * pid, pid=pid, events=pid) for pid in range(1, 6)]
    )
    assert not spans
    assert unranked == ("host_1.json, host_2.json, host_3.json and 2 more",)


FILES = st.lists(
    st.tuples(
        st.sampled_from(["a", "a/x", "a/y", "b", "a/rank*"]),
        st.integers(-1, 3),
        st.sampled_from([-1.0, 0.0, 0.5, 30.0, 90.0, 7200.0]),
        st.sampled_from([(-1, -1), (5, 9), (8, 12), (20, 24)]),
        st.sampled_from([0, 2, 4]),
        st.integers(1, 3),
    ),
    max_size=12,
)


@given(FILES)
@tried(max_examples=300, deadline=None)
def test_every_file_is_in_one_span_or_named_and_no_span_has_a_rank_twice(files: list[tuple[Any, ...]]) -> None:
    recordings = [
        recording(f"{place}/f{at}.json", rank, at_s, steps, place, world_size=world, pid=pid, events=at)
        for at, (place, rank, at_s, steps, world, pid) in enumerate(files)
    ]
    spans, unranked = group(recordings)
    paths = [summary.path for span in spans for summary in span.summaries]
    assert len(paths) == len(set(paths))
    ranked = {one[1].path for one in recordings if one[1].rank >= 0}
    assert ranked <= set(paths) and len(paths) <= len(recordings)
    assert bool(unranked) == (len(paths) < len(recordings))
    for span in spans:
        ranks = [summary.rank for summary in span.summaries]
        assert ranks == sorted(set(ranks)) and ranks[0] >= 0
    assert group(recordings[::-1]) == (spans, unranked)
