"""The verdict on the page: its word and numbers on top, its findings, and what it is based on at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from markupsafe import Markup

from eroica.model.shares import percent
from eroica.model.verdict import NO_FUNCTION, Finding, Verdict, VerdictWord
from eroica.model.words import byte_size, change, clean, history, milliseconds, seconds, sentence, worker_list
from eroica.report.phrases import (
    NumberRow,
    awaited,
    compared_with,
    is_recorded,
    number_rows,
    price,
    stands_still,
    whereabouts,
    window_facts,
)
from eroica.views.material import Material
from eroica.views.svg import Picture, join, line, path, rect, sign, svg, tag

#: Width of bars in their own coordinates; the page stretches them.
_BAR = 400.0
#: Outline and inner sign of each word, in a square of 24 pixels.
_SIGNS: dict[VerdictWord, tuple[str, str]] = {
    "slow": ("M12 1.5 23.4 22.2H.6z", "M12 9v6.2M12 18.6v.1"),
    "blocked": ("M7.3.9h9.4l6.4 6.4v9.4l-6.4 6.4H7.3L.9 16.7V7.3z", "M6.6 12h10.8"),
    "healthy": ("M12 .8a11.2 11.2 0 1 1 0 22.4a11.2 11.2 0 1 1 0-22.4z", "M6.8 12.4l3.6 3.7 6.9-7.6"),
    "undetermined": (
        "M12 .6 23.4 12 12 23.4.6 12z",
        "M9.2 9.6a2.9 2.9 0 1 1 4.3 2.5c-1 .6-1.5 1.1-1.5 2.1M12 17.3v.1",
    ),
}
#: Innermost frames that are not folded.
_OPEN_FRAMES = 4
_MOST_CAUSES, _MOST_SYMPTOMS, _MOST_NOTES = 12, 40, 40


@dataclass(frozen=True, kw_only=True)
class PaceBar:
    """One bar of the iteration times."""

    label: str
    bar: Markup
    value: str
    note: str = ""


def word_sign(word: VerdictWord) -> Markup:
    """Return the shape of a word: triangle, stop sign, disc with a tick, diamond with "?"."""
    outline, inner = _SIGNS[word]
    return sign(24, 24, path(outline, cls="mark"), path(inner, cls="sign"))


def pace_bars(verdict: Verdict) -> list[PaceBar]:
    """Return the iteration now, without the first cause, and before; none if unknown."""
    now, before = verdict.iteration.current_ms, verdict.iteration.baseline_ms
    if now is None:
        return []
    longest = max(now, before or 0.0, verdict.iteration.best_ms or 0.0)
    color = "bar-culprit" if verdict.verdict == "slow" else "bar"
    rows = [PaceBar(label="now", bar=_bar(now, longest, color), value=milliseconds(now))]
    cause = verdict.cause
    if cause is not None and cause.gain:
        left = now * (1 - cause.gain)
        rows.append(
            PaceBar(
                label="without the first cause"
                if sum(finding.role == "cause" for finding in verdict.findings) > 1
                else "without the cause",
                bar=_bar(left, longest, "bar", saved=now),
                value=milliseconds(left),
                note=f"{percent(cause.gain)} shorter",
            )
        )
    if before:
        note = f"now {change(before, now)}" if now > before else ""
        rows.append(PaceBar(label="before", bar=_bar(before, longest, "bar"), value=milliseconds(before), note=note))
    best = verdict.iteration.best_ms
    if best and before and milliseconds(best) != milliseconds(before):
        rows.append(PaceBar(label="at its best", bar=_bar(best, longest, "bar"), value=milliseconds(best)))
    rest = verdict.iteration.rest_ms
    if rest:
        note = "longer than before, and no cause explains it"
        bar = _bar(min(rest, longest), longest, "bar")
        rows.append(PaceBar(label="unexplained", bar=bar, value=milliseconds(rest), note=note))
    return rows


def _bar(value: float, longest: float, cls: str, saved: float = 0.0) -> Markup:
    """Return a bar, followed by an outlined one up to `saved`."""
    width = _BAR * value / longest if longest else 0.0
    until = _BAR * saved / longest if longest else 0.0
    gone = rect(width, 4, until - width - 0.5, 11, cls="saved") if until > width else None
    bar = rect(0, 3, width, 13, cls=cls)
    return sign(_BAR, 19, bar, gone, stretch=True)


def meter(share: float) -> Markup:
    """Return a share as a filled part of a track with a tick each quarter."""
    filled = _BAR * min(max(share, 0.0), 1.0)
    quarters = [line(_BAR * at, 2, _BAR * at, 17, cls="tick") for at in (0.25, 0.5, 0.75)]
    bars = (rect(0, 3, _BAR, 13, cls="track"), rect(0, 3, filled, 13, cls="bar"), *quarters)
    return sign(_BAR, 19, *bars, stretch=True)


def key_facts(material: Material) -> Iterator[tuple[str, str, bool]]:
    """Yield what the verdict is about: label, text, and whether it needs a line of its own."""
    verdict = material.verdict
    yield "Job", clean(verdict.job, 80) or "without a name", False
    yield (
        ("Recorded" if is_recorded(verdict) else "Standstill" if stands_still(verdict) else "Window"),
        _window(material),
        False,
    )
    when = happened(material)
    if when:
        yield "When", when, False
    yield "Workers", _workers(material), False
    if verdict.window is not None and verdict.window.reason:
        yield "Looked because", sentence(verdict.window.reason), True


def _window(material: Material) -> str:
    facts = window_facts(material.verdict)
    number = f"window {material.window_id}: " if material.window_id else ""
    return number + ", ".join(facts)


def _workers(material: Material) -> str:
    coverage = material.verdict.coverage
    hosts = len(set(material.hosts.values()) - {""})
    on = f" on {hosts:,} host{'s' if hosts > 1 else ''}" if hosts else ""
    if coverage.workers_reported >= coverage.workers_expected:
        return f"{coverage.workers_reported:,}{on}, all heard"
    return f"{coverage.workers_reported:,} of {coverage.workers_expected:,} heard{on}"


def happened(material: Material) -> str:
    """Return when the verdict's window was open: "2026-11-22 03:12 UTC"; "" if unknown."""
    history = material.history
    if history is None or not material.window_id:
        return ""
    kinds = ("window", "blocked", "verdict")
    marks = [mark for mark in history.marks if mark.window_id == material.window_id and mark.kind in kinds]
    if not marks:
        return ""
    try:
        when = datetime.fromtimestamp(history.began + marks[0].at_s, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{when:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, kw_only=True)
class NumberLine:
    """One number of a finding beside its peers', as text and as bars."""

    row: NumberRow
    bars: Markup


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause for the page; its texts are clean, not yet escaped.

    Attributes:
        title: Workers.
        compared_with: Head of the column beside "here".
        callers: Outer frames, folded.
        frames: Innermost frames; the last is the leaf.
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
    """Return the verdict's causes in order."""
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
    """Return the workers of a finding for its heading."""
    if finding.scope == "rotating":
        return "on changing workers"
    if finding.scope == "all":
        return "on all workers" if len(finding.workers) != 1 else f"on {worker_list(finding.workers)}"
    return f"on {worker_list(finding.workers)}" if finding.workers else ""


def _bars(row: NumberRow) -> Markup:
    """Return the number above its peers', on one scale from 0."""
    longest = max(row.value, row.peers_value or 0.0)
    unit = _BAR / longest if longest > 0 else 0.0
    here = rect(0, 2, max(row.value * unit, 1.0), 6, cls="bar-culprit")
    peers = rect(0, 10, max(row.peers_value * unit, 1.0), 6, cls="bar") if row.peers_value is not None else None
    return sign(_BAR, 18, here, peers, stretch=True)


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """A symptom in one line."""

    function: str
    where: str
    duration: str
    reason: str


def shown_symptoms(verdict: Verdict) -> list[Symptom]:
    """Return the verdict's symptoms in order."""
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
    )


def left_out(verdict: Verdict) -> str:
    """Return a sentence on the findings that are not on the page; "" if all are."""
    roles = [finding.role for finding in verdict.findings]
    more = max(0, roles.count("cause") - _MOST_CAUSES) + max(0, roles.count("symptom") - _MOST_SYMPTOMS)
    return f"{more} more findings stand in the JSON." if more else ""


def draw_coverage(material: Material) -> Picture:
    """Return who was heard, the notes, and what the window cost."""
    return Picture(
        id="coverage",
        title="Coverage and cost",
        body=join((_heard(material), _notes(material), _costs(material))),
    )


def _heard(material: Material) -> Markup:
    coverage = material.verdict.coverage
    expected = max(coverage.workers_expected, coverage.workers_reported, 1)
    bar = svg(
        _BAR,
        19,
        rect(0, 3, _BAR, 13, cls="track"),
        rect(0, 3, _BAR * coverage.workers_reported / expected, 13, cls="bar"),
        title=f"{coverage.workers_reported} of {coverage.workers_expected} workers",
        preserveAspectRatio="none",
    )
    words = f"Based on {coverage.workers_reported:,} of {coverage.workers_expected:,} workers."
    missing = f" Not heard: {worker_list(coverage.missing)}." if coverage.missing else ""
    return tag("div", tag("p", words + missing), tag("div", bar, cls="thin"), cls="heard")


def _notes(material: Material) -> Markup | None:
    notes = material.verdict.coverage.notes
    if not notes:
        return None
    items = [tag("li", sentence(note)) for note in notes[:_MOST_NOTES]]
    more = tag("li", f"and {len(notes) - _MOST_NOTES} more in the JSON") if len(notes) > _MOST_NOTES else None
    return join((tag("h3", "What to keep in mind"), tag("ul", *items, more, cls="evidence")))


def _costs(material: Material) -> Markup | None:
    facts = [(term, value, note) for term, value, note in _cost_facts(material) if value]
    if not facts:
        return None
    rows = [
        tag("div", tag("dt", term), tag("dd", tag("b", value), tag("p", note, cls="soft") if note else None))
        for term, value, note in facts
    ]
    title = "What reading cost" if is_recorded(material.verdict) else "What looking cost"
    return join((tag("h3", title), tag("dl", *rows, cls="key cost")))


def _cost_facts(material: Material) -> Iterator[tuple[str, str, str]]:
    """Yield term, value (empty: not shown) and what it is of."""
    verdict, cost = material.verdict, material.verdict.cost
    if not is_recorded(verdict) and not stands_still(verdict) and verdict.window is not None:
        yield "The job stood still for", seconds(cost.window_stall_s), "on the worker held up most"
    if cost.trigger_to_verdict_s is not None:
        yield (
            "Verdict after",
            seconds(cost.trigger_to_verdict_s),
            "from the reason to look" if stands_still(verdict) else "after the window",
        )
    yield "Summarizing", seconds(cost.summarize_s) if cost.summarize_s else "", "on the slowest worker"
    where = f" on Ray ({cost.engine_why})" if cost.engine == "ray" else ""
    yield "Comparing", seconds(cost.localize_s) if cost.localize_s else "", f"from patterns to verdict{where}"
    yield "Recorded", byte_size(cost.raw_bytes) if cost.raw_bytes else "", "on all workers, then thrown away"
    yield "Kept", byte_size(cost.pattern_bytes) if cost.pattern_bytes else "", _kept(cost.raw_bytes, cost.pattern_bytes)
    used = sum(pattern.samples_used for pattern in material.patterns)
    dropped = sum(pattern.samples_dropped for pattern in material.patterns)
    yield "Stack samples", f"{used:,}" if used else "", f"{dropped:,} could not be used" if dropped else ""


def _kept(raw: int, kept: int) -> str:
    return f"one byte of {raw / kept:,.0f}" if raw and kept else ""
