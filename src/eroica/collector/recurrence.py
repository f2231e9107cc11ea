"""Weigh what several windows of a job say of one cause: belief in it, whether it comes again, whether it grows.

Pure functions over verdicts and the courses that causes take through them (`eroica.collector.cause_tracking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from eroica.collector.cause_tracking import MOST_WINDOWS, Course, follow_causes, is_standstill
from eroica.model.verdict import Finding, Recurrence, Verdict

#: How far one healthy window speaks against a cause that another window saw (it may come and go)...
_HEALTHY_AGAINST = 0.3
#: ...and how far one that blames something else does, for each unit of its own confidence (both may be true).
_OTHER_AGAINST = 0.5
#: What is left of both for windows before the first that saw it: it had perhaps not begun.
_BEFORE_IT_BEGAN = 0.5
#: Iterations from which a window tells as much as any other.
_FULL_ITERATIONS = 10
#: No number of windows makes it surer: they share the rules and what these are blind to.
_HIGHEST = 0.99
#: Uncertainty of a gain, as a share of it and at least (recomputed iterations of healthy jobs scatter so far).
_GAIN_ERROR, _LEAST_GAIN_ERROR = 0.1, 0.02
_FEWEST_TO_GROW = 3
_MS_PER_HOUR = 3_600_000.0


# ---------------------------------------------------------------------- belief


def combine(confidences: Iterable[float]) -> float:
    """Belief from several windows that say the same, 0-1.

    One minus the product of the doubts 1 - p, as if windows were independent, but the k-th (strongest first) counts
    with the power 1 / k: windows of one job share its rules and their blind spots. One window gives its own confidence,
    a further one never lowers it, and the sum stays below 1.
    """
    doubt = 1.0
    for k, confidence in enumerate(sorted(confidences, reverse=True), 1):
        doubt *= (1.0 - min(max(confidence, 0.0), _HIGHEST)) ** (1.0 / k)
    return 1.0 - doubt


def believe(course: Course, finding: Finding, verdicts: Mapping[int, Verdict]) -> float:
    """Probability of a cause in the light of all windows, 0-1.

    Windows that agree support it by s, windows that could have shown it and did not speak against it by t; what neither
    decides stays open. Dempster's rule for two simple support functions (Shafer 1976, chapter 4) gives
    s (1 - t) / (1 - s t): s without contradiction, below s with it, never above 1.
    """
    agreeing = {one.window_id for one in course.agreeing(finding)}
    others = looked(course, finding, verdicts) - agreeing
    first = min(agreeing, default=0)
    against = [_speaks_against(verdicts[at], finding) * (_BEFORE_IT_BEGAN if at < first else 1.0) for at in others]
    s, t = combine(course.confidence(one) for one in course.agreeing(finding)), combine(against)
    if not against:
        return min(round(s, 3), _HIGHEST)
    return min(round(s * (1 - t) / (1 - s * t), 3), _HIGHEST)


def looked(course: Course, finding: Finding, verdicts: Mapping[int, Verdict]) -> frozenset[int]:
    """Windows that saw it, or could have: of the same kind, with a clear answer, and with one of its workers."""
    clear = {
        at
        for at in sorted(verdicts)[-MOST_WINDOWS:]
        if is_standstill(verdicts[at]) == course.blocked
        and verdicts[at].verdict != "undetermined"
        and _clarity(verdicts[at], finding) > 0
    }
    return course.windows | clear


def _speaks_against(verdict: Verdict, finding: Finding) -> float:
    cause = verdict.cause
    strength = _HEALTHY_AGAINST if cause is None else _OTHER_AGAINST * cause.confidence
    return strength * _clarity(verdict, finding)


def _clarity(verdict: Verdict, finding: Finding) -> float:
    """Degree to which a window could have shown a cause, by workers heard and iterations captured, 0-1."""
    coverage, window = verdict.coverage, verdict.window
    if finding.scope == "some" and finding.workers and set(finding.workers) <= set(coverage.missing):
        return 0.0
    heard = min(coverage.workers_reported / max(coverage.workers_expected, 1), 1.0)
    if window is None or window.first_iteration is None or window.last_iteration is None or window.kind == "blocked":
        return heard
    return heard * min(max(window.last_iteration - window.first_iteration, 0) / _FULL_ITERATIONS, 1.0)


# ---------------------------------------------------------------------- the word for it


def recurrence_of(course: Course, finding: Finding, verdicts: Mapping[int, Verdict]) -> Recurrence:
    """Sum up the windows that saw a finding: how often, on which workers, and whether it grows."""
    seen = course.agreeing(finding)
    gains = tuple(one.finding.gain for one in seen)
    windows = tuple(one.window_id for one in seen)
    costs = tuple(_cost_ms(one.finding, verdicts[one.window_id]) for one in seen)
    plain = Recurrence(
        kind="single", windows=windows, looked=len(looked(course, finding, verdicts)), gains=gains, costs_ms=costs
    )
    if plain.looked < 2:
        return plain
    if len(seen) < 2:
        return msgspec.structs.replace(plain, kind="one-off")
    if course.wanders:
        return msgspec.structs.replace(plain, kind="rotating")
    if not grows(gains):
        return msgspec.structs.replace(plain, kind="recurring")
    growth = _growth_ms_per_hour(costs, [verdicts[at] for at in windows])
    return msgspec.structs.replace(plain, kind="worsening", growth_ms_per_hour=growth)


def grows(gains: Sequence[float | None]) -> bool:
    """Return whether a cause gets worse: its gains never fall beyond their uncertainty, and rise beyond it.

    At least three gains must be known.
    """
    known = [gain for gain in gains if gain is not None]
    if len(known) < _FEWEST_TO_GROW:
        return False
    steady = all(after - before >= -_error(before, after) for before, after in pairwise(known))
    return steady and known[-1] - known[0] > 2 * _error(known[0], known[-1])


def _cost_ms(finding: Finding, verdict: Verdict) -> float | None:
    """Cost of a cause in each iteration of a window, milliseconds; None where no gain or iteration time is known."""
    if finding.gain is None or verdict.iteration.current_ms is None:
        return None
    return round(finding.gain * verdict.iteration.current_ms, 3)


def _growth_ms_per_hour(costs_ms: Sequence[float | None], verdicts: Sequence[Verdict]) -> float | None:
    """Slope of costs over the time between windows, by least squares; None where windows do not say when they were.

    Between two windows lie as many iterations as their numbers say, each as long as the mean of both windows'.
    """
    hours, known, at, before = [], [], 0.0, None
    for cost, verdict in zip(costs_ms, verdicts, strict=True):
        window, current_ms = verdict.window, verdict.iteration.current_ms
        if cost is None or window is None or window.first_iteration is None or current_ms is None:
            continue
        if before is not None:
            at += (window.first_iteration - before[0]) * (before[1] + current_ms) / 2 / _MS_PER_HOUR
        before = window.first_iteration, current_ms
        hours.append(at)
        known.append(cost)
    if len(known) < 2 or hours[-1] <= hours[0]:
        return None
    return float(np.polyfit(hours, known, 1)[0])


def _error(one: float, other: float) -> float:
    """Standard error of the difference of two gains."""
    first, second = (max(_GAIN_ERROR * gain, _LEAST_GAIN_ERROR) for gain in (one, other))
    return float((first**2 + second**2) ** 0.5)


def with_recurrence(window_id: int, verdict: Verdict, earlier: Mapping[int, Verdict]) -> Verdict:
    """A window's verdict, its causes marked with what this window and those before it say of them together."""
    known = {**earlier, window_id: verdict}
    courses = courses_in(window_id, known)
    findings = tuple(
        msgspec.structs.replace(finding, recurrence=recurrence_of(courses[finding.order], finding, known))
        if finding.order in courses
        else finding
        for finding in verdict.findings
    )
    return msgspec.structs.replace(verdict, findings=findings)


def courses_in(window_id: int, verdicts: Mapping[int, Verdict]) -> dict[int, Course]:
    """The courses of a window's causes, by the order of the finding."""
    return {order: course for course in follow_causes(verdicts) for order in course.orders(window_id)}
