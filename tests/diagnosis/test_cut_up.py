"""Messages that one worker has begun to send in pieces are its own doing, though everybody waits in them."""

from __future__ import annotations

import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.worker import ProcessGroup
from eroica.pipeline import analyze
from eroica.testing import synthesize_window
from eroica.testing.pipelines import Step, patterns_of_played, play

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


@pytest.mark.parametrize("worker", [1, 3])
def test_who_sends_in_pieces_is_named(worker: int) -> None:
    verdict = judge(window_of({worker: 200}))
    found = verdict.findings[0]
    assert (found.cause, found.workers) == ("fragmented-collectives", (worker,)), verdict.summary
    assert f"Worker {worker} sends 200 messages" in verdict.summary
    assert found.gain is not None and found.gain > 0.3


def test_pieces_of_everybody_are_nobodys_own() -> None:
    verdict = judge(window_of(dict.fromkeys(range(1, WORKERS), 200)))
    assert all(found.scope == "all" for found in verdict.findings if found.cause == "fragmented-collectives")


@pytest.mark.parametrize(("pieces", "work_us"), [({}, 2 * WORK_US), ({2: 3}, 2 * WORK_US)])
def test_other_slowdowns_are_not_cut_up_messages(pieces: dict[int, int], work_us: float) -> None:
    verdict = judge(window_of(pieces, work_us))
    assert "fragmented-collectives" not in {found.cause for found in verdict.findings}, verdict.summary
