"""What the windows of a job say of a cause together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.collector.history import final_verdict
from eroica.collector.recurrence import combine, with_recurrence
from eroica.model.verdict import (
    Coverage,
    Finding,
    IterationTimes,
    Verdict,
    VerdictWindow,
)
from support.verdicts import cause as named
from support.verdicts import plain


def found(cause: str, *workers: int, **more: Any) -> Finding:
    return named(cause, *workers, **{"gain": 0.3, "hosts": ("h",), **more})


def window(*findings: Finding, word: str = "", reported: int = 8, iterations: int = 50) -> Verdict:
    ordered = tuple(msgspec.structs.replace(finding, order=order) for order, finding in enumerate(findings, 1))
    return plain(
        word or ("slow" if findings else "healthy"),
        "It is slow." if findings else "It is healthy.",
        *ordered,
        window=VerdictWindow(kind="iterations", first_iteration=100, last_iteration=100 + iterations),
        coverage=Coverage(workers_expected=8, workers_reported=reported),
    )


def final(*windows: Verdict) -> Verdict:
    return final_verdict("j", dict(enumerate(windows, 1)), 8, 8)


def cause_of(verdict: Verdict) -> Finding:
    assert verdict.cause is not None
    return verdict.cause


LOADER = found("slow-data-loading", 2)


def test_a_single_window_keeps_its_confidence_and_says_nothing_of_others() -> None:
    verdict = final(window(LOADER))
    cause = cause_of(verdict)
    assert cause.recurrence is not None and cause.recurrence.kind == "single"
    assert cause.confidence == 0.9 and verdict.summary == "It is slow."


def test_the_same_cause_on_the_same_workers_recurs_and_is_believed_more() -> None:
    weak = found("slow-data-loading", 2, confidence=0.6)
    verdict = final(window(weak), window(weak), window(weak))
    cause = cause_of(verdict)
    assert cause.recurrence is not None
    assert (cause.recurrence.kind, cause.recurrence.windows, cause.recurrence.looked) == ("recurring", (1, 2, 3), 3)
    assert 0.6 < cause.confidence < 1 - 0.4**3  # more than one window, less than three independent ones
    assert verdict.summary == "It is slow. Seen in all 3 windows (1–3)."


def test_the_same_cause_on_other_workers_each_time_rotates_and_blames_none() -> None:
    verdict = final(*(window(found("slow-data-loading", worker)) for worker in (2, 5, 1)), window())
    cause = cause_of(verdict)
    assert cause.recurrence is not None and cause.recurrence.kind == "rotating"
    assert (cause.workers, cause.scope) == ((), "rotating")
    assert "worker 2 in window 1, worker 5 in window 2, worker 1 in window 3" in cause.evidence[0]
    assert "Seen in 3 of 4 windows (1–3), on other workers each time, not in the last one." in verdict.summary
    assert "orker 1 " not in verdict.summary


def test_twice_on_different_workers_is_not_yet_rotating() -> None:
    """It may be two troubles, the first of which was mended."""
    verdict = final(window(found("slow-data-loading", 2)), window(found("slow-data-loading", 5)))
    assert verdict.verdict == "undetermined"
    assert [one.workers for one in verdict.findings] == [(2,), (5,)]
    assert "Another window while the job is slow would settle it" in verdict.summary


def test_a_worker_that_takes_over_for_good_does_not_rotate_and_is_the_one_named() -> None:
    windows = [window(found("compute-slow", worker)) for worker in (2, 2, 7, 7, 7)]
    cause = cause_of(final(*windows))
    assert cause.workers == (7,) and cause.recurrence is not None and cause.recurrence.windows == (3, 4, 5)
    assert cause.confidence < cause_of(final(*windows[2:])).confidence


@pytest.mark.parametrize(
    ("vague", "precise"),
    [
        ("unknown", "compute-slow"),
        ("python-on-critical-path", "blocking-checkpoint"),
        ("compute-slow", "cpu-contention"),
        ("slow-data-loading", "slow-storage-read"),
    ],
)
def test_the_more_precise_name_stands_whichever_window_had_it(vague: str, precise: str) -> None:
    for names in ((vague, precise), (precise, vague)):
        verdict = final(*(window(found(name, 3, confidence=0.8)) for name in names))
        cause = cause_of(verdict)
        assert cause.cause == precise and verdict.verdict == "slow"
        assert cause.recurrence is not None and cause.recurrence.windows == (1, 2)
        assert 0.8 < cause.confidence < combine((0.8, 0.8))


def test_a_weak_window_beside_healthy_ones_is_a_one_off_and_believed_less() -> None:
    weak = found("slow-data-loading", 2, confidence=0.5)
    after = final(window(weak), window(), window(), window())
    cause = cause_of(after)
    assert cause.recurrence is not None and (cause.recurrence.kind, cause.recurrence.looked) == ("one-off", 4)
    assert cause.confidence < 0.35
    assert after.summary.endswith("Seen in one of 4 windows (window 1), not in the last 3.")
    before = final(window(), window(), window(), window(weak))  # it had perhaps not begun
    assert cause.confidence < cause_of(before).confidence < 0.5
    assert before.summary.endswith("Seen in one of 4 windows (window 4), the last of them.")


@pytest.mark.parametrize(
    "silent",
    [
        window(word="undetermined"),
        window(iterations=0),
        window(reported=0),
        msgspec.structs.replace(window(), coverage=Coverage(workers_expected=8, workers_reported=7, missing=(2,))),
    ],
)
def test_a_window_that_could_not_show_it_says_nothing_against_it(silent: Verdict) -> None:
    cause = cause_of(final(window(LOADER), silent))
    assert cause.confidence == 0.9 and cause.recurrence is not None and cause.recurrence.kind == "single"


def test_windows_that_contradict_each_other_are_undetermined_and_say_what_would_settle_it() -> None:
    verdict = final(window(LOADER), window(found("compute-slow", 5)))
    assert verdict.verdict == "undetermined" and verdict.exit_code == 4
    assert "window 1 found slow-data-loading (f) on worker 2" in verdict.summary
    assert "window 2 found compute-slow (f) on worker 5" in verdict.summary and "eroica profile" in verdict.summary
    assert [finding.order for finding in verdict.findings] == [1, 2]


def test_a_cause_that_has_taken_the_place_of_another_stands() -> None:
    old, new = window(found("slow-data-loading", 2, gain=0.32)), window(found("compute-slow", 5))
    verdict = final(old, old, new, new)
    assert verdict.verdict == "slow" and cause_of(verdict).cause == "compute-slow"


def test_a_cause_that_grows_says_by_how_much_an_hour() -> None:
    # 100 ms of healthy work and a cost that grows by 0.2 ms an iteration, in windows at iterations 0, 100, 200 and 300
    costs = [20.0, 40.0, 60.0, 80.0]
    windows = []
    for first, cost in zip(range(0, 400, 100), costs, strict=True):
        now_ms = 100.0 + cost
        verdict = window(found("blocking-logging", 0, gain=cost / now_ms))
        frame = VerdictWindow(kind="iterations", first_iteration=first, last_iteration=first + 20)
        windows.append(msgspec.structs.replace(verdict, window=frame, iteration=IterationTimes(current_ms=now_ms)))
    recurrence = cause_of(final(*windows)).recurrence
    assert recurrence is not None and recurrence.kind == "worsening" and recurrence.growth_ms_per_hour is not None
    hours = sum(100 * (100 + cost + 10) for cost in costs[:-1]) / 3_600_000
    assert recurrence.growth_ms_per_hour == pytest.approx(60 / hours, rel=0.02)
    assert (
        "growing by" in final(*windows).summary
        and "20.0 ms of an iteration at first, 80.0 ms" in final(*windows).summary
    )


def test_a_windows_own_verdict_says_what_was_known_then() -> None:
    earlier = {1: window(), 2: window(LOADER)}
    marked = with_recurrence(3, window(LOADER), earlier)
    cause = cause_of(marked)
    assert cause.recurrence is not None and cause.recurrence.kind == "recurring" and cause.recurrence.windows == (2, 3)
    assert cause.confidence == 0.9 and cause.recurrence.looked == 3
    first = cause_of(with_recurrence(1, window(LOADER), {})).recurrence
    assert first is not None and first.kind == "single"
    assert Verdict.from_json(marked.to_json()) == marked


CAUSES = st.sampled_from(["slow-data-loading", "compute-slow", "unknown", "python-on-critical-path"])
FINDINGS = st.builds(
    lambda cause, workers, confidence, gain, scope: found(
        cause, *sorted(workers), confidence=confidence, gain=gain, scope=scope
    ),
    CAUSES,
    st.sets(st.integers(0, 7), min_size=1, max_size=3),
    st.floats(0.05, 0.99),
    st.one_of(st.none(), st.floats(0.01, 0.9)),
    st.sampled_from(["some", "some", "all", "rotating"]),
)
WINDOWS = st.lists(st.lists(FINDINGS, max_size=3).map(lambda findings: window(*findings)), min_size=1, max_size=7)


@settings(max_examples=120, deadline=None)
@given(WINDOWS)
def test_whatever_the_windows_say_the_final_cause_is_one_of_theirs(windows: list[Verdict]) -> None:
    verdict = final(*windows)
    named = {finding.cause for one in windows for finding in one.findings}
    assert (verdict.cause is None) == (not named)
    for finding in verdict.findings:
        assert finding.cause in named and 0 <= finding.confidence <= 1
        assert finding.recurrence is not None and finding.recurrence.looked <= len(windows)
        assert len(finding.recurrence.gains) == len(finding.recurrence.windows) <= finding.recurrence.looked
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_what_communication_alone_found_slow_stands_until_a_window_finds_nothing_wrong() -> None:
    sensed = msgspec.structs.replace(window(found("slow-link", 3)), found_by="communication")
    assert final(sensed).verdict == "slow"
    assert final(sensed, window()).verdict == "healthy"
    assert final(window(), sensed).verdict == "slow"
    assert final(sensed, window(found("slow-link", 3))).verdict == "slow"
