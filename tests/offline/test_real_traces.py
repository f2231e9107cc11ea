"""Traces that real jobs recorded between 2021 and 2024, and cases that others wrote, from file to verdict."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from eroica.localize import localize
from eroica.localize.axis import fit_axis
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import Window
from eroica.offline import diagnose
from eroica.offline.reading import read_one
from eroica.pipeline import analyze
from eroica.settings import Settings

TRACES = Path(__file__).parents[2] / "../shared/traces"
CASES = TRACES.parent / "cases" / "traces"
pytestmark = pytest.mark.skipif(
    not (TRACES.is_dir() and CASES.is_dir()), reason=f"there are no recorded traces in {TRACES} and {CASES}"
)


@cache
def patterns_of(wanted: str) -> tuple[WorkerPattern, ...]:
    summaries = [read_one(path, -1, Settings()) for path in sorted(TRACES.glob(wanted))]
    return tuple(summary.pattern for summary in summaries if summary.pattern is not None)


@cache
def diagnosed(wanted: str) -> Verdict:
    patterns = patterns_of(wanted)
    first, last = patterns[0].first_iteration, patterns[0].last_iteration
    window = Window(window_id=1, purpose="trace", kind="trace", reason="", first_iteration=first, last_iteration=last)
    return analyze("job", window, patterns)


def causes(verdict: Verdict) -> list[Finding]:
    return [finding for finding in verdict.findings if finding.role == "cause"]


DLRM = "dlrm_8ranks/*.json"


def test_who_comes_last_to_most_collectives_is_named_first_and_why_is_not_pretended_to_be_known() -> None:
    verdict = diagnosed(DLRM)
    assert verdict.verdict == "slow"
    assert verdict.summary.startswith("Worker 7 comes last to 5 of 8 matched collectives")
    assert "its step began late already, and what came before was not recorded" in verdict.summary
    first, second = causes(verdict)[:2]
    assert (first.cause, first.workers, second.workers) == ("unknown", (7,), (4, 5))
    assert first.gain is not None and second.gain is not None and second.gain < first.gain
    assert any("the start of the profiler itself" in sentence for sentence in first.evidence)


def test_ranks_of_one_host_lie_on_one_axis_within_microseconds() -> None:
    axis = fit_axis(patterns_of(DLRM))
    assert set(axis.places) == set(range(8))
    assert axis.uncertainty_ns < 10_000
    # the host's clock is one: the starts of the recorded steps are known from the files
    starts_us = [0, -5468, 1419, -4772, -2624, -2478, 1408, 2046]
    assert [axis.places[rank].offset_ns / 1e3 for rank in range(8)] == pytest.approx(starts_us, abs=8)


def test_a_loader_without_workers_is_named() -> None:
    for number in ("1623143089861", "1623143566756"):
        verdict = diagnosed(f"loader_stall/resnet50_num_workers_0/worker0.{number}.pt.trace.json.gz")
        assert [cause.cause for cause in causes(verdict)] == ["slow-data-loading"]
        assert "__next__" in causes(verdict)[0].function.name


def test_with_four_loader_workers_there_is_nothing_to_find() -> None:
    for number in ("1623212756351", "1623213129365"):
        assert not diagnosed(f"loader_stall/resnet50_num_workers_4/worker0.{number}.pt.trace.json.gz").findings


def test_one_rank_alone_shows_a_loader_that_takes_half_of_its_time() -> None:
    verdict = diagnosed("resnet_1rank.json.gz")
    assert [cause.cause for cause in causes(verdict)] == ["slow-data-loading"]
    assert causes(verdict)[0].gain == pytest.approx(0.45, abs=0.1)
    assert causes(verdict)[0].confidence < 0.8


def test_traces_whose_events_were_subsampled_are_not_matched() -> None:
    verdict = diagnosed("schemas/trace_filter/*.json.gz")
    assert verdict.verdict == "undetermined"
    assert "ends of the executions paired by order differ by up to" in verdict.summary
    assert verdict.findings == ()
    assert verdict.coverage.missing == tuple(range(2, 128))
    assert localize(patterns_of("schemas/trace_filter/*.json.gz"), (), Settings()).arrivals.blamed_us.sum() == 0


def test_a_device_that_waits_for_its_host_three_quarters_of_the_time() -> None:
    verdict = diagnosed("schemas/nccl_parser_config/*.json.gz")
    assert [cause.cause for cause in causes(verdict)] == ["host-bound"]
    assert causes(verdict)[0].confidence < 0.6
    assert "The device of worker 0 waits for the host" in verdict.summary
    assert verdict.coverage.missing == (1,)


SCHEMAS = sorted(path.name for path in (TRACES / "schemas").glob("*")) if TRACES.is_dir() else []


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_ends_in_a_verdict_or_a_reason(schema: str) -> None:
    verdict = diagnosed(f"schemas/{schema}/*.json.gz")
    assert verdict.verdict in ("healthy", "slow", "undetermined")
    assert verdict.verdict != "undetermined" or len(verdict.summary) > 40
    assert verdict.window is not None and verdict.window.kind == "trace"
    words = " ".join([verdict.summary, *verdict.coverage.notes, *(c.next_step for c in causes(verdict))])
    assert "window" not in words
    assert "trigger" not in words
    assert Verdict.from_json(verdict.to_json()) == verdict


@pytest.mark.parametrize(
    ("name", "late", "words"),
    [
        ("cpu_only_rank_*", set(), ("Worker 1 is left out", "no device events")),
        ("cut_rank_*", set(), ("Worker 1 is left out", "file ends inside")),
        ("shifted_rank_*", {2}, ()),
        ("deepep_*", {2}, ()),
        ("one_step_six_waits_*", {2}, ()),
        ("layers_as_iterations.json", set(), ("No iterations were found", "looks like inference")),
        ("host_runs_ahead.json", set(), ("No iterations were found",)),
        ("startup_unmarked.json", set(), ("No iterations were found", "once per process")),
        ("ascend_trace_view.json", set(), ("unknown kind",)),
        ("pair_groups_*", set(), ("stage",)),
        ("rotating_*", set(), ("27 % of each iteration", "another worker each time")),
    ],
)
def test_a_case_that_others_wrote_is_judged_as_it_is(name: str, late: set[int], words: tuple[str, ...]) -> None:
    verdict = diagnose(str(CASES / name), settings=Settings(readers=1))
    named = [cause for cause in causes(verdict) if cause.scope == "some"]
    assert {worker for cause in named for worker in cause.workers} == late
    assert all(word in verdict.summary for word in words)
    assert (verdict.verdict == "slow") == bool(late or name == "pair_groups_*")
    assert not late or (named[0].gain is not None and named[0].gain == pytest.approx(0.5, abs=0.02))
