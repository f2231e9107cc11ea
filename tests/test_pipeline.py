from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import WorkerPattern
from eroica.model.series import encode_series
from eroica.model.verdict import Verdict
from eroica.model.window import REFUSED, Window, WindowPurpose
from eroica.pipeline import analyze
from eroica.wire.codec import decode_record, encode_record
from support import (
    BackwardHook,
    FleetPlan,
    SlowCompute,
    SlowLoader,
    SlowPython,
    Trouble,
    synthesize,
    synthesize_window,
)

PLAN = FleetPlan(seed=3)


def slow_window(best_s: float, current_s: float) -> Window:
    return Window(
        window_id=2,
        purpose="slow",
        reason="the last iterations are slower",
        first_iteration=2000,
        last_iteration=2040,
        baseline_iteration_s=best_s,
        current_iteration_s=current_s,
    )


def test_the_sentence_says_who_what_how_long_and_what_it_costs() -> None:
    patterns = synthesize(PLAN, [SlowLoader((2,), 40, "_read_block (project/dataset.py:70)")], 2)
    verdict = analyze("job", synthesize_window(patterns), patterns)
    assert verdict.summary.startswith("Worker 2 spends 4")
    assert "iteration in _read_block (dataset.py:70) loading data; the other 3 workers wait for it." in verdict.summary
    assert "would make iterations about 3" in verdict.summary


def test_a_verdict_survives_json_and_carries_coverage_and_cost() -> None:
    patterns = synthesize(PLAN, [SlowLoader((2,), 40)], 2)
    verdict = analyze("job", synthesize_window(patterns), patterns, notes=["a note"])
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert verdict.coverage.workers_expected == verdict.coverage.workers_reported == 4
    assert verdict.coverage.notes[0] == "a note"
    assert verdict.cost.window_stall_s == 0.3
    assert verdict.cost.raw_bytes == 8_000_000
    assert verdict.cost.pattern_bytes == sum(len(encode_record(pattern)) for pattern in patterns)
    assert 0 < verdict.cost.localize_s < 5
    assert verdict.exit_code == 3
    assert verdict.iteration.current_ms == pytest.approx(99, abs=5)


def test_patterns_that_travelled_give_the_same_verdict_in_any_order() -> None:
    patterns = synthesize(PLAN, [BackwardHook((1,), 30)], 2)
    window = synthesize_window(patterns)
    travelled = [decode_record(encode_record(pattern), WorkerPattern) for pattern in reversed(patterns)]
    first, second = (analyze("job", window, some) for some in (patterns, travelled))
    assert first.findings == second.findings
    assert first.summary == second.summary


@pytest.mark.parametrize(
    ("patterns", "expected", "words"),
    [
        ([], 4, "no worker"),
        (synthesize(FleetPlan(iterations=1), [SlowLoader((2,), 40)], 2), 4, "share 1 iteration"),
        ([synthesize(PLAN, (), 1)[0], synthesize(PLAN, (), 2)[1]], 2, "no iteration in common"),
        (synthesize(PLAN, (), 2)[:1], 4, "only 1 of 4 workers"),
    ],
    ids=["no worker", "one iteration", "none in common", "one worker"],
)
def test_too_little_is_undetermined_and_said(patterns: list[WorkerPattern], expected: int, words: str) -> None:
    verdict = analyze("job", slow_window(0.06, 0.08), patterns, expected_workers=expected)
    assert (verdict.verdict, verdict.findings, verdict.exit_code) == ("undetermined", (), 4)
    assert words in verdict.summary, verdict.summary
    assert verdict.coverage.workers_reported == len(patterns)


def test_workers_that_started_late_are_compared_on_common_iterations() -> None:
    patterns = synthesize(PLAN, [SlowLoader((2,), 40)], 2)
    shifted = msgspec.structs.replace(patterns[0], first_iteration=2003, last_iteration=2043)
    verdict = analyze("job", synthesize_window(patterns), [shifted, *patterns[1:]])
    assert verdict.cause is not None
    assert verdict.cause.workers == (2,)


def test_with_the_culprit_missing_nobody_else_is_accused() -> None:
    patterns = [p for p in synthesize(PLAN, [SlowLoader((2,), 60)], 2) if p.worker.global_rank != 2]
    verdict = analyze("job", synthesize_window(patterns), patterns)
    assert verdict.verdict == "undetermined"
    assert "worker 2 did not report" in verdict.summary
    assert verdict.findings == ()


def test_a_missing_worker_is_noted() -> None:
    everybody = synthesize(FleetPlan(workers=8, seed=3), [SlowLoader((2,), 40)], 2)
    some = [pattern for pattern in everybody if pattern.worker.global_rank != 7]
    partial = analyze("job", synthesize_window(some), some)
    assert partial.coverage.missing == (7,)
    assert any("7 of 8 workers" in note for note in partial.coverage.notes)
    assert partial.cause is not None


def test_a_slow_window_that_nothing_explains_is_undetermined_and_says_what_is_missing() -> None:
    healthy = synthesize(PLAN, (), 2)
    verdict = analyze("job", slow_window(0.030, 0.063), healthy)
    assert verdict.verdict == "undetermined"
    assert "no baseline window" in verdict.summary


def test_trap_7_a_lucky_best_iteration_does_not_make_a_cause() -> None:
    """A window whose iterations are no longer slow is healthy and says so, whatever the trigger saw."""
    healthy = synthesize(PLAN, (), 2)
    verdict = analyze("job", slow_window(0.060, 0.120), healthy)
    assert verdict.verdict == "healthy"
    assert "was over when the window opened" in verdict.summary


def test_collectives_that_do_not_pair_leave_the_cause() -> None:
    patterns = [
        msgspec.structs.replace(
            p, collectives=tuple(msgspec.structs.replace(c, paired_by="none") for c in p.collectives)
        )
        for p in synthesize(PLAN, [SlowLoader((2,), 40)], 2)
    ]
    verdict = analyze("job", synthesize_window(patterns), patterns)
    assert verdict.cause is not None
    assert verdict.cause.workers == (2,)


def test_a_single_worker_is_compared_with_its_own_past() -> None:
    plan = FleetPlan(workers=1, seed=4)
    before = synthesize(plan, (), 1)
    patterns = synthesize(plan, [SlowPython(30)], 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert verdict.cause is not None
    assert (verdict.cause.cause, verdict.cause.workers) == ("python-on-critical-path", (0,))
    assert analyze("job", synthesize_window(before), before).verdict == "healthy"


def test_a_baseline_of_other_workers_is_left_aside_and_noted() -> None:
    patterns = synthesize(PLAN, (), 2)
    strangers = [
        msgspec.structs.replace(p, worker=msgspec.structs.replace(p.worker, global_rank=p.worker.global_rank + 40))
        for p in synthesize(PLAN, (), 1)
    ]
    verdict = analyze("job", synthesize_window(patterns), patterns, strangers)
    assert verdict.verdict == "healthy"
    assert any("shares no worker" in note for note in verdict.coverage.notes)


def cut_short(pattern: WorkerPattern) -> WorkerPattern:
    """Durations of its collectives end before its sequence numbers do."""
    records = tuple(
        msgspec.structs.replace(one, duration_us=encode_series(np.ones(1, dtype=np.float32)))
        for one in pattern.collectives
    )
    return msgspec.structs.replace(pattern, collectives=records)


def torn(pattern: WorkerPattern) -> WorkerPattern:
    """Its iterations cannot be decoded."""
    return msgspec.structs.replace(pattern, iteration_us=pattern.iteration_us[:-7])


@pytest.mark.parametrize("damage", [cut_short, torn])
def test_a_damaged_pattern_costs_only_itself(damage: Callable[[WorkerPattern], WorkerPattern]) -> None:
    patterns = synthesize(FleetPlan(seed=3, workers=8), [SlowLoader((2,), 40)], 2)
    window = synthesize_window(patterns)
    patterns[5] = damage(patterns[5])
    verdict = analyze("job", window, patterns)
    assert verdict.cause is not None and verdict.cause.workers == (2,), verdict.summary
    assert (verdict.coverage.workers_reported, verdict.coverage.missing) == (7, (5,))
    assert any("patterns with damaged series were left out: worker 5" in note for note in verdict.coverage.notes)


@pytest.mark.parametrize("damage", [cut_short, torn])
def test_a_damaged_healthy_window_costs_the_verdict_only_that_worker(
    damage: Callable[[WorkerPattern], WorkerPattern],
) -> None:
    before = synthesize(FleetPlan(seed=4), (), 1)
    patterns = synthesize(FleetPlan(seed=3), [SlowPython(40)], 2)
    window = synthesize_window(patterns, "slow", before)
    before[1] = damage(before[1])
    verdict = analyze("job", window, patterns, before)
    assert verdict.cause is not None and verdict.cause.function.name == "_score_tokens", verdict.summary


REFUSED_NOTE = f"{REFUSED}iterations took 31 ms when it was taken."


def doubted_job(
    troubles: Sequence[Trouble], purpose: WindowPurpose = "slow"
) -> tuple[Window, list[WorkerPattern], list[WorkerPattern]]:
    before = list(synthesize(FleetPlan(seed=103), (), 1))
    patterns = list(synthesize(PLAN, troubles, 2))
    return synthesize_window(patterns, purpose, before), patterns, before


def all_texts(verdict: Verdict) -> str:
    parts = [verdict.summary, *verdict.coverage.notes]
    for one in verdict.findings:
        parts += [*one.evidence, one.next_step]
    for tried in verdict.considered:
        parts += [tried.decision, *tried.met, *tried.missing, *tried.unknown]
    return " ".join(parts)


def test_a_baseline_window_that_is_not_trusted_tells_where_nothing_else_does() -> None:
    window, patterns, before = doubted_job([SlowCompute((0, 1, 2, 3), 3.0)])
    assert analyze("job", window, patterns, notes=[REFUSED_NOTE]).verdict == "undetermined"
    verdict = analyze("job", window, patterns, notes=[REFUSED_NOTE], doubted=before)
    assert verdict.cause is not None and verdict.cause.cause == "compute-slow", verdict.summary
    assert verdict.window is not None and (verdict.window.compared_with, verdict.window.doubted) == (0, 1)
    assert REFUSED_NOTE in verdict.coverage.notes and "compared with all the same" in verdict.coverage.notes[-1]
    assert "in the baseline window" in verdict.summary
    for said in ("job was healthy", "healthy window", "healthy baseline window"):
        assert said not in all_texts(verdict), said


def test_a_doubted_window_that_names_no_cause_leaves_the_verdict_without_it() -> None:
    """The window is slow by the trigger, and no slower than the doubted one: "healthy" against that, or nothing."""
    patterns = list(synthesize(PLAN, [SlowCompute((0, 1, 2, 3), 3.0)], 2))
    before = list(synthesize(FleetPlan(seed=103), [SlowCompute((0, 1, 2, 3), 3.0)], 1))
    window = synthesize_window(patterns, "slow", synthesize(FleetPlan(seed=103), (), 1))
    alone = analyze("job", window, patterns, notes=[REFUSED_NOTE])
    assert alone.verdict == "undetermined"
    assert analyze("job", window, patterns, before).cause is None
    verdict = analyze("job", window, patterns, notes=[REFUSED_NOTE], doubted=before)
    assert (verdict.verdict, verdict.summary) == ("undetermined", alone.summary)
    assert verdict.window is not None and verdict.window.doubted == 0
    assert verdict.coverage.notes == alone.coverage.notes


def test_a_baseline_window_that_is_not_trusted_changes_nothing_where_a_cause_is_named_or_none_is_missing() -> None:
    before = synthesize(FleetPlan(seed=103), (), 1)
    for troubles, word in (([SlowLoader((2,), 40)], "slow"), ([], "healthy")):
        patterns = synthesize(PLAN, troubles, 2)
        window = synthesize_window(patterns, "slow" if troubles else "manual", before)
        verdict = analyze("job", window, patterns, notes=[REFUSED_NOTE], doubted=before)
        assert verdict.verdict == word and verdict.window is not None and verdict.window.compared_with == 0
        assert REFUSED_NOTE in verdict.coverage.notes
