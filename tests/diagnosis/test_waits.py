"""Who waits for whom on the record: conserved, bounded, the same after a trip over the wire."""

from __future__ import annotations

from eroica.diagnosis.blocked import diagnose_blockage
from eroica.diagnosis.sections import MOST_EDGES, MOST_NAMED, read_waits
from eroica.localize import localize
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import WaitEdge, Waits
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, SlowLoader, Standstill, synthesize, synthesize_window
from support.pipelines import patterns_of_played, pipeline_programs, play

SLOW, FAST = 30_000.0, 20_000.0


def slow_fleet(workers: int, culprit: int) -> list[WorkerPattern]:
    return synthesize(FleetPlan(seed=3, workers=workers), (SlowLoader((culprit,), 40.0),), 1)


def slow_pipelines(replicas: int = 2, stages: int = 3) -> list[WorkerPattern]:
    """One replica's last stage is slow: its stages before it wait for it, and the other replica waits for those."""
    work = [[FAST] * stages for _ in range(replicas)]
    work[0][-1] = SLOW
    programs, groups = pipeline_programs(work, 8)
    return patterns_of_played(play(programs, groups), groups)


def waits_of(patterns: list[WorkerPattern]) -> Waits:
    found = read_waits(localize(patterns, (), Settings()))
    assert found is not None
    return found


def test_everybody_waits_for_the_slow_one_and_the_verdict_says_so() -> None:
    patterns = slow_fleet(8, 5)
    verdict = analyze("job", synthesize_window(patterns), patterns)
    waits = verdict.waits
    assert waits is not None and waits.workers == 8 and not waits.standstill
    assert {(edge.waiter, edge.on) for edge in waits.edges} == {(rank, 5) for rank in range(8) if rank != 5}
    assert next(iter(waits.blamed_ms)) == 5
    assert all(20 < edge.per_iteration_ms < 60 for edge in waits.edges)
    assert [edge.per_iteration_ms for edge in waits.edges] == sorted(
        (edge.per_iteration_ms for edge in waits.edges), reverse=True
    )


def test_edges_are_direct_and_blame_follows_the_chain() -> None:
    waits = waits_of(slow_pipelines())
    edges = {(edge.waiter, edge.on): edge.per_iteration_ms for edge in waits.edges}
    assert edges[1, 2] > 10 and edges[0, 1] > 10  # of one pipeline, each waits for the next one
    assert edges.keys() & {(3, 0), (4, 1), (5, 2)}  # the other one waits in the gradients' all-reduce
    assert (0, 2) not in edges
    assert next(iter(waits.blamed_ms)) == 2
    into_culprit = sum(waited for (_, on), waited in edges.items() if on == 2)
    assert waits.blamed_ms[2] > into_culprit


def test_very_many_workers_leave_a_short_list() -> None:
    waits = waits_of(slow_fleet(260, 41))
    assert len(waits.edges) == MOST_EDGES and {edge.on for edge in waits.edges} == {41}
    assert len(waits.waited_ms) == MOST_NAMED and len(waits.blamed_ms) <= MOST_NAMED


def test_nothing_is_told_where_nobody_was_seen_to_wait() -> None:
    patterns = slow_fleet(1, 0)
    assert analyze("job", synthesize_window(patterns), patterns).waits is None


def test_of_a_standstill_the_edges_have_no_times() -> None:
    job = Standstill(4)
    job.add_group("tp", (0, 1))
    job.wait((0,), group="tp", sequence=0)
    job.wait((2, 3))
    verdict = diagnose_blockage(job.blockage(), "demo", Settings())
    assert verdict is not None and verdict.waits is not None
    assert verdict.waits.standstill and verdict.waits.total_ms == 0 and not verdict.waits.blamed_ms
    assert set(verdict.waits.edges) == {
        WaitEdge(waiter=waiter, on=on, per_iteration_ms=0.0) for waiter, on in ((0, 1), (2, 0), (2, 1), (3, 0), (3, 1))
    }


def test_who_waits_further_on_waits_for_those_missing_before_too() -> None:
    job = Standstill(4)
    job.wait((1,), sequence=12)
    job.wait((2, 3), sequence=13)
    verdict = diagnose_blockage(job.blockage(), "demo", Settings())
    assert verdict is not None and verdict.waits is not None
    edges = {(edge.waiter, edge.on) for edge in verdict.waits.edges}
    assert edges == {(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)}
