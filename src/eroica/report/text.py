"""The verdict in a terminal: the sentence first, then causes with evidence and next step, then symptoms, dimmed.

Everything that comes from the job (functions, hosts, reasons) is written as plain text: neither console markup nor
control characters in it have any effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eroica.model.shares import percent
from eroica.model.verdict import NO_FUNCTION, Finding, Verdict
from eroica.report.layout import draw, headline, left_out
from eroica.report.numbers import compared_with, legend, numbers
from eroica.report.phrases import awaited, is_recorded, pace_facts, price, stands_still, whereabouts, window_facts
from eroica.report.why import build_nearest
from eroica.report.words import (
    byte_size,
    clean,
    history,
    milliseconds,
    seconds,
    sentence,
    worker_list,
)

_STYLES = {"slow": "bold red", "blocked": "bold red", "healthy": "bold green", "undetermined": "bold yellow"}
_MOST_CAUSES = 5
_MOST_SYMPTOMS = 8
_MOST_NOTES = 6
_TRAIL_FRAMES = 3


def render_verdict(verdict: Verdict, console: Console) -> None:
    """Draw `verdict` on `console`, in its width and colors (none under `NO_COLOR` or in a file)."""
    draw(build_report(verdict), console)


def build_report(verdict: Verdict) -> list[RenderableType]:
    """The parts of the report, from top to bottom."""
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    parts: list[RenderableType] = [
        headline(verdict.verdict, verdict.summary, _STYLES[verdict.verdict]),
        *_circumstances(verdict),
    ]
    for finding in causes[:_MOST_CAUSES]:
        parts += [Text(), _cause(finding, verdict)]
    parts += left_out(len(causes) - _MOST_CAUSES, "cause")
    parts += legend(causes[:_MOST_CAUSES])
    parts += build_nearest(verdict)
    parts += _symptoms(verdict)
    parts += [Text(), *_coverage(verdict)]
    parts += [_cost(verdict)] if verdict.window is not None and not stands_still(verdict) else []
    return parts


def _circumstances(verdict: Verdict) -> Iterator[Text]:
    facts = [f"job {clean(verdict.job, 60)}", *window_facts(verdict), *pace_facts(verdict)]
    yield Text(" · ".join(facts), style="dim")
    if verdict.window is not None and verdict.window.reason:
        yield Text(f"looked because: {sentence(verdict.window.reason)}", style="dim")


# ---------------------------------------------------------------------- causes


def _cause(finding: Finding, verdict: Verdict) -> RenderableType:
    title = Text.assemble((f"{finding.order}  {clean(finding.cause, 60)}", "bold"), ("  ", ""), _certainty(finding))
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1, overflow="fold")
    for label, value in _cause_rows(finding, verdict):
        rows.add_row(label, value)
    return Group(title, Padding(rows, (0, 0, 0, 3)))


def _cause_rows(finding: Finding, verdict: Verdict) -> Iterator[tuple[str, RenderableType]]:
    if finding.function.name != NO_FUNCTION or finding.function.stack:
        yield "function", _function(finding)
    yield "where", Text(whereabouts(finding, everybody=not (is_recorded(verdict) and verdict.coverage.missing)))
    if not stands_still(verdict):
        yield "costs", Text(price(finding, verdict.iteration.current_ms))
    table = numbers(finding, compared_with(finding, is_recorded(verdict)))
    if table is not None:
        yield "pattern", table
    if finding.recurrence is not None and finding.recurrence.kind != "single":
        yield "history", Text(history(finding.recurrence))
    if finding.evidence:
        yield "evidence", _bullets(finding.evidence)
    if finding.next_step:
        yield "next", Text(sentence(finding.next_step), style="bold green")


def _certainty(finding: Finding) -> Text:
    return Text(f"confidence {percent(finding.confidence)}", style="dim")


def _function(finding: Finding) -> Text:
    function = finding.function
    shown = Text.assemble((clean(function.name), "bold cyan"), (f"  {function.kind}", "dim"))
    callers = [clean(frame, 80) for frame in function.stack if frame]
    named = [at for at, frame in enumerate(callers) if frame.split(" (", 1)[0] == clean(function.name)]
    if callers:
        trail, cut = callers[-_TRAIL_FRAMES:], len(callers) - _TRAIL_FRAMES
        if named and named[-1] < cut:  # libraries that it calls say where it is, not who calls
            trail = [callers[named[-1]], "…", *trail[1:]]
        shown.append(f"\n{'… › ' if cut > 0 else ''}{' › '.join(trail)}", style="dim")
    return shown


def _bullets(lines: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for line in lines:
        table.add_row("•", Text(sentence(line)))
    return table


# ---------------------------------------------------------------------- symptoms, coverage, cost


def _symptoms(verdict: Verdict) -> list[RenderableType]:
    symptoms = [finding for finding in verdict.findings if finding.role == "symptom"]
    if not symptoms:
        return []
    lines = [Text(_symptom(finding, verdict.findings), style="dim") for finding in symptoms[:_MOST_SYMPTOMS]]
    indented = [Padding(line, (0, 0, 0, 3)) for line in lines]
    more = left_out(len(symptoms) - _MOST_SYMPTOMS, "symptom")
    state = "they stand still" if stands_still(verdict) else "slow"
    return [Text(), Text(f"Only symptoms: {state} because they wait", style="dim"), *indented, *more]


def _symptom(finding: Finding, findings: Sequence[Finding]) -> str:
    causes = [other for other in findings if finding.order in other.explains]
    reason = " and ".join(f"{awaited(cause)} ({cause.order})" for cause in causes)
    duration = finding.duration
    long = f", {milliseconds(duration.per_iteration_ms)} per iteration" if duration is not None else ""
    where = worker_list(finding.workers) if finding.scope == "some" else "all workers"
    return f"{clean(finding.function.name, 80)} on {where}{long}: waits for {reason or 'another worker'}"


def _coverage(verdict: Verdict) -> Iterator[Text]:
    coverage = verdict.coverage
    heard = f"Based on {coverage.workers_reported} of {coverage.workers_expected} workers"
    missing = f"; missing: {worker_list(coverage.missing)}" if coverage.missing else ""
    complete = coverage.workers_reported >= coverage.workers_expected and not coverage.missing
    yield Text(heard + missing, style="dim" if complete else "yellow")
    for note in coverage.notes[:_MOST_NOTES]:
        yield Text(f"Note: {sentence(note)}", style="dim")
    yield from left_out(len(coverage.notes) - _MOST_NOTES, "note")
    if stands_still(verdict) and verdict.cost.trigger_to_verdict_s is not None:
        yield Text(f"Verdict {seconds(verdict.cost.trigger_to_verdict_s)} after the trigger", style="dim")


def _cost(verdict: Verdict) -> Text:
    cost = verdict.cost
    kept = f"{byte_size(cost.pattern_bytes)} kept of {byte_size(cost.raw_bytes)}"
    if verdict.found_by == "communication":
        after = f" {seconds(cost.trigger_to_verdict_s)} after it began" if cost.trigger_to_verdict_s is not None else ""
        return Text(f"Told by communication alone{after}: a window says what it is", style="dim")
    if is_recorded(verdict):
        return Text(f"Reading cost: at most {seconds(cost.summarize_s)} a file, {kept}", style="dim")
    facts = [f"the job stood still for {seconds(cost.window_stall_s)}"]
    if cost.trigger_to_verdict_s is not None:
        facts.append(f"verdict {seconds(cost.trigger_to_verdict_s)} after the window")
    facts.append(f"summary {seconds(cost.summarize_s)}")
    facts.append(kept)
    return Text(f"Looking cost: {', '.join(facts)}", style="dim")
