"""Findings as the page shows them: causes in full, symptoms in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from eroica.model.shares import percent
from eroica.model.verdict import NO_FUNCTION, Finding, Verdict
from eroica.report.numbers import NumberRow, compared_with, number_rows
from eroica.report.phrases import awaited, is_recorded, price, stands_still, whereabouts
from eroica.report.words import clean, history, milliseconds, sentence, worker_list
from eroica.views.svg import rect, sign

#: Frames that stand open; the others are folded.
_OPEN_FRAMES = 4
#: Width of the bars beside the numbers, in their own coordinates.
_BAR = 160.0
#: A verdict with more of them has a longer list in its JSON.
_MOST_CAUSES, _MOST_SYMPTOMS = 12, 40


@dataclass(frozen=True, kw_only=True)
class NumberLine:
    """One number of a finding beside its peers': texts, and both as bars."""

    row: NumberRow
    bars: Markup


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause, ready for the page; every text is cleaned, none is escaped yet.

    Attributes:
        finding: The record.
        title: Function and workers.
        function: Name of the function, "" where none is known.
        where: Workers and hosts.
        price: What it costs; "" for a job that stands still.
        recurrence: How often it was seen; "" in the first window.
        compared_with: Head of the column beside "here".
        numbers: Lines of the small table.
        has_expected: The table has a column for what is expected.
        callers: Frames outside, outermost first, folded.
        frames: Innermost frames; the last is the leaf.
        evidence: Sentences.
        next_step: One sentence or two.
        page: Where the manual explains this cause.
    """

    finding: Finding
    title: str
    function: str
    where: str
    price: str
    recurrence: str
    compared_with: str
    numbers: tuple[NumberLine, ...]
    has_expected: bool
    callers: tuple[str, ...]
    frames: tuple[str, ...]
    evidence: tuple[str, ...]
    next_step: str
    page: str


def shown_causes(verdict: Verdict) -> list[Cause]:
    """The verdict's causes, the first one first."""
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    return [_cause(finding, verdict) for finding in causes[:_MOST_CAUSES]]


def _cause(finding: Finding, verdict: Verdict) -> Cause:
    rows = list(number_rows(finding))
    stack = tuple(clean(frame, 200) for frame in finding.function.stack if frame)
    recurrence = finding.recurrence
    return Cause(
        finding=finding,
        title=_title(finding),
        function="" if finding.function.name == NO_FUNCTION else clean(finding.function.name, 120),
        where=whereabouts(finding, everybody=not (is_recorded(verdict) and verdict.coverage.missing)),
        price="" if stands_still(verdict) else price(finding, verdict.iteration.current_ms),
        recurrence=history(recurrence) if recurrence is not None and recurrence.kind != "single" else "",
        compared_with=compared_with(finding, is_recorded(verdict)),
        numbers=tuple(NumberLine(row=row, bars=_bars(row)) for row in rows),
        has_expected=any(row.expected for row in rows),
        callers=stack[:-_OPEN_FRAMES],
        frames=stack[-_OPEN_FRAMES:],
        evidence=tuple(map(sentence, finding.evidence)),
        next_step=sentence(finding.next_step),
        page=f"docs/causes/{clean(finding.cause, 60)}.md",
    )


def _title(finding: Finding) -> str:
    """Workers of a finding, for its heading."""
    if finding.scope == "rotating":
        return "on changing workers"
    if finding.scope == "all":
        return "on all workers" if len(finding.workers) != 1 else f"on {worker_list(finding.workers)}"
    return f"on {worker_list(finding.workers)}" if finding.workers else ""


def _bars(row: NumberRow) -> Markup:
    """The number above, its peers' below, on one scale that begins at 0."""
    longest = max(row.value, row.peers_value or 0.0)
    unit = _BAR / longest if longest > 0 else 0.0
    here = rect(0, 2, max(row.value * unit, 1.0), 6, cls="bar-culprit")
    peers = rect(0, 10, max(row.peers_value * unit, 1.0), 6, cls="bar") if row.peers_value is not None else None
    return sign(_BAR, 18, here, peers, stretch=True)


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """A symptom in one line: which function, where, how long, and what it waits for."""

    function: str
    where: str
    duration: str
    reason: str
    confidence: str


def shown_symptoms(verdict: Verdict) -> list[Symptom]:
    """The verdict's symptoms."""
    symptoms = [finding for finding in verdict.findings if finding.role == "symptom"]
    return [_symptom(finding, verdict.findings) for finding in symptoms[:_MOST_SYMPTOMS]]


def _symptom(finding: Finding, findings: Sequence[Finding]) -> Symptom:
    causes = [other for other in findings if finding.order in other.explains]
    duration = finding.duration
    return Symptom(
        function=clean(finding.function.name, 120),
        where=worker_list(finding.workers) if finding.scope == "some" else "all workers",
        duration=f"{milliseconds(duration.per_iteration_ms)} per iteration" if duration is not None else "",
        reason=" and ".join(f"{awaited(cause)} (cause {cause.order})" for cause in causes) or "another worker",
        confidence=percent(finding.confidence),
    )


def left_out(verdict: Verdict) -> str:
    """How many findings are not on the page, as a sentence; "" if all are."""
    roles = [finding.role for finding in verdict.findings]
    more = max(0, roles.count("cause") - _MOST_CAUSES) + max(0, roles.count("symptom") - _MOST_SYMPTOMS)
    return f"{more} more findings stand in the JSON." if more else ""
