"""Batches cut into fewer pieces leave a pipeline's stages idle for longer: told against the healthy window."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from eroica.testing import synthesize_window
from eroica.testing.pipelines import patterns_of_played, pipeline_programs, play

ITERATIONS = 20
BATCH_US = 24_000.0


def window_of(microbatches: int, batch_us: float = BATCH_US, replicas: int = 2, stages: int = 2) -> list[WorkerPattern]:
    """Each stage computes as long for the batch, in as many pieces; operators run once for each of them."""
    piece = (batch_us / microbatches,) * stages
    programs, groups = pipeline_programs((piece,) * replicas, ITERATIONS, microbatches)
    patterns = patterns_of_played(play(programs, groups), groups)
    return [
        msgspec.structs.replace(
            one,
            functions=tuple(
                msgspec.structs.replace(row, count=10 * microbatches * ITERATIONS) if row.key.kind == "compute" else row
                for row in one.functions
            ),
        )
        for one in patterns
    ]


def judge(now: list[WorkerPattern], then: list[WorkerPattern], purpose: str = "slow") -> Verdict:
    return analyze("job", synthesize_window(now, purpose, then), now, then)


@pytest.mark.parametrize(("before", "after"), [(8, 2), (4, 1)])
def test_fewer_pieces_are_told_with_what_they_cost(before: int, after: int) -> None:
    now, then = window_of(after), window_of(before)
    verdict = judge(now, then)
    found = verdict.findings[0]
    assert (verdict.verdict, found.cause, found.scope) == ("slow", "misconfiguration", "all"), verdict.summary
    assert "4.0 times fewer micro-batches" in verdict.summary
    lost = 1 - then[0].duration_s / now[0].duration_s
    assert found.gain == pytest.approx(lost, abs=0.02)


def test_pieces_as_many_as_before_are_no_cause() -> None:
    """The same growth, because every stage computes longer."""
    verdict = judge(window_of(4, batch_us=1.4 * BATCH_US), window_of(4))
    assert "misconfiguration" not in {found.cause for found in verdict.findings}


def test_smaller_batches_in_fewer_pieces_do_not_make_stages_wait_longer() -> None:
    verdict = judge(window_of(2, batch_us=BATCH_US / 2), window_of(4), purpose="manual")
    assert "misconfiguration" not in {found.cause for found in verdict.findings}
