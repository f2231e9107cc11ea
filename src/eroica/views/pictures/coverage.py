"""Who was heard, what else the reader should know, and what looking cost."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from eroica.report.phrases import is_recorded, stands_still
from eroica.report.words import byte_size, seconds, sentence, worker_list
from eroica.views.material import Material
from eroica.views.picture import Picture
from eroica.views.svg import join, rect, svg, tag

_BAR = 400.0
_MOST_NOTES = 40


def draw(material: Material) -> Picture | None:
    """Always something: a verdict without it cannot be judged."""
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
    """Term, value, what it is of; an empty value is not shown."""
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
