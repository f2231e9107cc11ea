"""Batches cut into fewer pieces leave a pipeline's stages idle for longer: told against the healthy window."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import synthesize_window
from support.pipelines import Step, patterns_of_played, pipeline_programs, play

ITERATIONS = 20
BATCH_US = 24_000.0
NORM = Step("all_reduce", 300.0, "0")


def window_of(
    microbatches: int, batch_us: float = BATCH_US, replicas: int = 2, stages: int = 2, norm: bool = False
) -> list[WorkerPattern]:
    """Each stage computes as long for the batch, in as many pieces; operators run once for each of them.

    With `norm`, all stages agree on the norm of the gradients at the end of each iteration.
    """
    piece = (batch_us / microbatches,) * stages
    programs, groups = pipeline_programs((piece,) * replicas, ITERATIONS, microbatches)
    if norm:
        programs = [
            [one for step in program for one in ([NORM] if step.does == "iteration" else []) + [step]]
            for program in programs
        ]
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


def test_the_same_where_all_stages_wait_for_the_norm_of_the_gradients() -> None:
    """Its all-reduce takes its share of what the stages wait for each other."""
    verdict = judge(window_of(4, stages=4, norm=True), window_of(16, stages=4, norm=True))
    assert verdict.findings[0].cause == "misconfiguration", verdict.summary


def test_kernels_of_one_name_for_both_ways_hide_nothing() -> None:
    def on_device(patterns: list[WorkerPattern]) -> list[WorkerPattern]:
        named = {"gloo:send": "ncclDevKernel_SendRecv", "gloo:recv": "ncclDevKernel_SendRecv"}
        return [
            msgspec.structs.replace(
                one,
                functions=tuple(
                    msgspec.structs.replace(
                        row, key=msgspec.structs.replace(row.key, name=named.get(row.key.name, row.key.name))
                    )
                    for row in one.functions
                    if row.key.name != "gloo:send"
                ),
            )
            for one in patterns
        ]

    verdict = judge(on_device(window_of(1)), on_device(window_of(4)))
    assert verdict.findings[0].cause == "misconfiguration", verdict.summary


def test_fewer_pieces_that_account_for_little_are_not_the_cause() -> None:
    """Ten instead of sixteen, in a job whose stages compute twice as long."""
    verdict = judge(window_of(10, batch_us=2.0 * BATCH_US), window_of(16))
    assert "misconfiguration" not in {found.cause for found in verdict.findings}


def test_pieces_as_many_as_before_are_no_cause() -> None:
    """The same growth, because every stage computes longer."""
    verdict = judge(window_of(4, batch_us=1.4 * BATCH_US), window_of(4))
    assert "misconfiguration" not in {found.cause for found in verdict.findings}


def test_smaller_batches_in_fewer_pieces_do_not_make_stages_wait_longer() -> None:
    verdict = judge(window_of(2, batch_us=BATCH_US / 2), window_of(4), purpose="manual")
    assert "misconfiguration" not in {found.cause for found in verdict.findings}
