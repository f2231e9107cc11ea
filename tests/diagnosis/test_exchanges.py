"""What became of the exchange since the healthy window: more data, more calls, or nothing beside it any more."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from eroica.diagnosis.context import WindowContext
from eroica.diagnosis.exchanges import find_change
from eroica.diagnosis.view import View
from eroica.localize import localize
from eroica.model.pattern import CollectiveRecord, FunctionPattern, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.verdict import Finding, Verdict
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, SlowLink, SlowPython, synthesize, synthesize_window

seeds = pytest.mark.parametrize("seed", range(3))
CORES = 4


def judge(
    seed: int,
    ms: float,
    then: Callable[[WorkerPattern], WorkerPattern] = lambda one: one,
    now: Callable[[WorkerPattern], WorkerPattern] = lambda one: one,
    purpose: str = "slow",
) -> Verdict:
    """Collectives take so many milliseconds more on all workers, on a host without cores to spare."""
    past = [then(one) for one in synthesize(FleetPlan(seed=seed, cores=CORES), (), 1)]
    patterns = [now(one) for one in synthesize(FleetPlan(seed=seed, draw=1, cores=CORES), (SlowLink(ms),), 2)]
    return analyze("job", synthesize_window(patterns, purpose, past), patterns, past)  # type: ignore[arg-type]


def carrying(pattern: WorkerPattern, elements: int, times: int = 1) -> WorkerPattern:
    """Each of its collectives carries so many elements, and each is run so many times as often."""

    def of_record(record: CollectiveRecord) -> CollectiveRecord:
        sizes = np.full(record.executions, elements, np.int64)
        return msgspec.structs.replace(record, elements=encode_series(sizes))

    def of_row(row: FunctionPattern) -> FunctionPattern:
        return msgspec.structs.replace(row, count=row.count * times) if row.key.kind == "collective" else row

    return msgspec.structs.replace(
        pattern,
        collectives=tuple(map(of_record, pattern.collectives)),
        functions=tuple(map(of_row, pattern.functions)),
    )


def hidden(pattern: WorkerPattern, ms: float) -> WorkerPattern:
    """Its collectives last so many milliseconds longer in each iteration, beside other work."""

    def of_row(row: FunctionPattern) -> FunctionPattern:
        if row.key.kind != "collective":
            return row
        seconds = ms / 1e3 * (pattern.last_iteration - pattern.first_iteration)
        return msgspec.structs.replace(row, total_s=row.total_s + seconds)

    return msgspec.structs.replace(pattern, functions=tuple(map(of_row, pattern.functions)))


def only(verdict: Verdict) -> Finding:
    causes = [one for one in verdict.findings if one.role == "cause"]
    assert len(causes) == 1, verdict.summary
    return causes[0]


@seeds
def test_more_data_is_said(seed: int) -> None:
    verdict = judge(seed, 40, lambda one: carrying(one, 1_000_000), lambda one: carrying(one, 4_000_000))
    found = only(verdict)
    assert found.cause == "slow-collective-everywhere"
    assert "workers exchange 4.0 times as much as in the healthy window" in verdict.summary
    wanted = "2 calls with 8 million elements together; in the healthy window 2 calls with 2 million elements together."
    assert f"In each iteration: {wanted}" in found.evidence
    assert "no_sync()" in found.next_step


@seeds
def test_more_calls_with_the_same_data_are_said(seed: int) -> None:
    verdict = judge(seed, 40, lambda one: carrying(one, 1_000_000), lambda one: carrying(one, 250_000, 4))
    assert "4.0 times as many calls as in the healthy window, which carry as much" in verdict.summary
    assert "one flat tensor" in only(verdict).next_step


@seeds
def test_of_more_calls_whose_sizes_nobody_recorded_nothing_is_said_of_data(seed: int) -> None:
    verdict = judge(seed, 40, lambda one: carrying(one, 0), lambda one: carrying(one, 0, 4))
    assert "4.0 times as many calls as in the healthy window." in verdict.summary
    assert "In each iteration: 8 calls; in the healthy window 2 calls." in only(verdict).evidence
    assert "no_sync()" in only(verdict).next_step


@seeds
def test_what_was_hidden_and_is_waited_for_now_is_said(seed: int) -> None:
    verdict = judge(seed, 40, lambda one: hidden(one, 52))
    assert "nothing runs beside it any more" in verdict.summary
    assert "async_op=True" in only(verdict).next_step


def beside(pattern: WorkerPattern, ms: float) -> WorkerPattern:
    """Its scoring of tokens takes so many milliseconds longer, beside which collectives run."""
    seconds = ms / 1e3 * (pattern.last_iteration - pattern.first_iteration)

    def of_row(row: FunctionPattern) -> FunctionPattern:
        is_scoring = row.key.name == "_score_tokens"
        return msgspec.structs.replace(row, total_s=row.total_s + seconds) if is_scoring else row

    return msgspec.structs.replace(pattern, functions=tuple(map(of_row, pattern.functions)))


@seeds
@pytest.mark.parametrize("ms", [0.0, 18.0])
def test_a_function_that_takes_as_long_as_ever_is_not_accused_when_nothing_runs_beside_it_any_more(
    seed: int, ms: float
) -> None:
    """It is on the critical path for 24 ms instead of 8; in the healthy window 16 of 24 ms lay behind collectives."""
    past = [
        beside(hidden(one, 52), ms) for one in synthesize(FleetPlan(seed=seed, cores=CORES), (SlowPython(ms=8),), 1)
    ]
    now = synthesize(FleetPlan(seed=seed, draw=1, cores=CORES), (SlowLink(40), SlowPython(ms=24)), 2)
    verdict = analyze("job", synthesize_window(now, "slow", past), now, past)
    causes = {one.cause: one for one in verdict.findings if one.role == "cause"}
    assert ("python-on-critical-path" in causes) == (ms == 0)
    if ms:
        assert "nothing runs beside it any more" in verdict.summary
        grown = 1 - verdict.iteration.baseline_ms / verdict.iteration.current_ms
        assert causes["slow-collective-everywhere"].gain == pytest.approx(grown, rel=0.15)


@seeds
def test_what_a_function_took_beside_collectives_before_is_told_with_what_it_took(seed: int) -> None:
    """60 ms instead of 24, of which 16 lay behind collectives then."""
    slow = (SlowPython(ms=8),)
    past = [beside(hidden(one, 52), 16.0) for one in synthesize(FleetPlan(seed=seed, cores=CORES), slow, 1)]
    now = synthesize(FleetPlan(seed=seed, draw=1, cores=CORES), (SlowLink(10), SlowPython(ms=60)), 2)
    found = analyze("job", synthesize_window(now, "slow", past), now, past).cause
    assert found is not None and found.cause == "python-on-critical-path"
    assert "16 ms of it beside collectives" in found.evidence[0], found.evidence[0]


@seeds
def test_a_function_under_which_operators_ran_before_is_accused_for_what_it_takes_itself_now(seed: int) -> None:
    """24 ms instead of 8, which was 24 with its operators; collectives are as they were."""
    past = [beside(one, 16.0) for one in synthesize(FleetPlan(seed=seed, cores=CORES), (SlowPython(ms=8),), 1)]
    now = synthesize(FleetPlan(seed=seed, draw=1, cores=CORES), (SlowPython(ms=24),), 2)
    found = analyze("job", synthesize_window(now, "slow", past), now, past).cause
    assert found is not None and found.function.name == "_score_tokens"


@seeds
@pytest.mark.parametrize("ms", [8, 11, 20])
def test_a_network_that_gets_slower_has_not_lost_what_runs_beside_it(seed: int, ms: float) -> None:
    """As much is hidden as before, and the rest lasts longer."""
    verdict = judge(seed, ms, lambda one: hidden(one, 52), lambda one: hidden(one, 52))
    assert not any("beside it any more" in text for text in (verdict.summary, *evidence_of(verdict)))


def evidence_of(verdict: Verdict) -> list[str]:
    return [text for one in verdict.findings for text in one.evidence]


@seeds
def test_the_same_exchange_that_takes_longer_is_just_slow(seed: int) -> None:
    verdict = judge(seed, 60)
    assert only(verdict).cause == "slow-collective-everywhere"
    assert not any(words in verdict.summary for words in ("exchange", "times as many", "beside it"))


@seeds
@pytest.mark.parametrize(("times", "is_told"), [(1, False), (4, True)])
def test_another_exchange_is_told_on_busy_cores_already_when_it_takes_half_as_long_again(
    seed: int, times: int, is_told: bool
) -> None:
    """Where cores are scarce, transfers that are as they were must take three times as long."""
    verdict = judge(seed, 9, lambda one: carrying(one, 1_000_000), lambda one: carrying(one, times * 1_000_000))
    assert [one.cause for one in verdict.findings if one.role == "cause"] == ["slow-collective-everywhere"] * is_told


@seeds
def test_where_nobody_finds_the_job_slow_nothing_is_said(seed: int) -> None:
    def more(one: WorkerPattern) -> WorkerPattern:
        return carrying(one, 4_000_000)

    verdict = judge(seed, 0, lambda one: carrying(one, 1_000_000), more, "manual")
    assert [one for one in verdict.findings if one.role == "cause"] == []


def test_only_those_who_take_part_are_measured() -> None:
    """A stage has the exchange, two others have not."""

    def told(elements: int, draw: int) -> list[WorkerPattern]:
        return [
            carrying(one, elements, 1 if one.worker.global_rank < 2 else 0)
            for one in synthesize(FleetPlan(workers=6, draw=draw), (), draw + 1)
        ]

    then, now = told(1_000_000, 0), told(3_000_000, 1)
    context = WindowContext(job="job", window=synthesize_window(now, "slow", then), expected_workers=6)
    view = View(localize(now, then, Settings()), context, Settings())
    row = next(at for at, key in enumerate(view.fleet.keys) if key.kind == "collective")
    change = find_change(view, row)
    assert change is not None
    assert (change.now.calls, change.data) == (pytest.approx(2.0), pytest.approx(3.0))
