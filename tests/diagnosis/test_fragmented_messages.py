"""Messages that one worker has begun to send in pieces are its own doing, though everybody waits in them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.series import encode_series
from eroica.model.verdict import Verdict
from eroica.model.worker import ProcessGroup
from eroica.pipeline import analyze
from support import synthesize_window
from support.pipelines import Step, patterns_of_played, play

ITERATIONS, WORKERS = 30, 4
WORK_US, MESSAGE_US, PIECE_US = 20_000.0, 4_000.0, 200.0


def window_of(pieces: dict[int, int], work_us: float = WORK_US) -> list[WorkerPattern]:
    """Rank 0 serves: it takes what each other sends, one after another, and answers; messages in so many pieces."""
    group = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(WORKERS)), backend="gloo")
    server, others = [], []
    for rank in range(1, WORKERS):
        count = pieces.get(rank, 1)
        each_us = MESSAGE_US if count == 1 else PIECE_US
        server += [Step("recv", each_us, "0", rank)] * count
        others.append([Step("work", work_us), *[Step("send", each_us, "0", 0)] * count, Step("recv", 300.0, "0", 0)])
    server += [Step("send", 300.0, "0", rank) for rank in range(1, WORKERS)]
    programs = [[*one, Step("work", 100.0), Step("iteration")] * ITERATIONS for one in (server, *others)]
    return patterns_of_played(play(programs, [group]), [group])


def judge(now: list[WorkerPattern], purpose: str = "slow") -> Verdict:
    then = window_of({})
    return analyze("job", synthesize_window(now, purpose, then), now, then)


def test_pieces_of_everybody_are_nobodys_own() -> None:
    verdict = judge(window_of(dict.fromkeys(range(1, WORKERS), 200)))
    assert all(found.scope == "all" for found in verdict.findings if found.cause == "fragmented-collectives")


@pytest.mark.parametrize(("pieces", "work_us"), [({}, 2 * WORK_US), ({2: 3}, 2 * WORK_US)])
def test_other_slowdowns_are_not_cut_up_messages(pieces: dict[int, int], work_us: float) -> None:
    verdict = judge(window_of(pieces, work_us))
    assert "fragmented-collectives" not in {found.cause for found in verdict.findings}, verdict.summary


def stages(buckets: int, purpose: str = "slow") -> Verdict:
    """Worker 0 teaches, 1 and 2 learn and sum their gradients in a group of their own, in so many buckets."""
    groups = [
        ProcessGroup(name="0", description="default_pg", ranks=(0, 1, 2), backend="gloo"),
        ProcessGroup(name="1", description="students", ranks=(1, 2), backend="gloo"),
    ]

    def window(count: int) -> list[WorkerPattern]:
        each_us, sends = 400.0 if count > 1 else 3_000.0, [Step("send", 300.0, "0", rank) for rank in (1, 2)]
        teacher = [Step("work", 15_000.0), *sends, Step("work", 100.0), Step("iteration")]
        sums = [Step("all_reduce", each_us, "1")] * count
        student = [Step("recv", 300.0, "0", 0), Step("work", WORK_US), *sums, Step("work", 100.0), Step("iteration")]
        meet = [Step("all_reduce", 500.0, "0")]
        programs = [[*meet, *one] * ITERATIONS for one in (teacher, student, student)]
        return [of_small_sums(one) for one in patterns_of_played(play(programs, groups), groups)]

    then, now = window(1), window(buckets)
    return analyze("job", synthesize_window(now, purpose, then), now, then)


def of_small_sums(pattern: WorkerPattern) -> WorkerPattern:
    """The same with sums of 2,000 elements each."""
    records = [
        msgspec.structs.replace(one, elements=encode_series(np.full(one.executions, 2_000, dtype=np.int64)))
        for one in pattern.collectives
    ]
    return msgspec.structs.replace(pattern, collectives=tuple(records))


def test_but_not_where_nobody_finds_the_job_slow() -> None:
    verdict = stages(40, "manual")
    assert "fragmented-collectives" not in {found.cause for found in verdict.findings}, verdict.summary
