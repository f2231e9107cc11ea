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
from eroica.model.verdict import NO_FUNCTION, Finding, Verdict, VerdictWindow
from eroica.report.layout import draw, headline, left_out
from eroica.report.numbers import compared_with, legend, numbers
from eroica.report.words import (
    byte_size,
    change,
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
    parts += _symptoms(verdict)
    parts += [Text(), *_coverage(verdict)]
    parts += [_cost(verdict)] if verdict.window is not None and not _stands_still(verdict) else []
    return parts


def _stands_still(verdict: Verdict) -> bool:
    """The job made no iteration while it was looked at: no pattern, no gain, nothing to pay."""
    return verdict.window is not None and verdict.window.kind == "blocked"


def _is_recorded(verdict: Verdict) -> bool:
    """Read from files: nobody looked at a running job."""
    return verdict.window is not None and verdict.window.kind == "trace"


def _circumstances(verdict: Verdict) -> Iterator[Text]:
    facts = [f"job {clean(verdict.job, 60)}", *_window(verdict), *_pace(verdict)]
    yield Text(" · ".join(facts), style="dim")
    if verdict.window is not None and verdict.window.reason:
        yield Text(f"looked because: {sentence(verdict.window.reason)}", style="dim")


def _window(verdict: Verdict) -> list[str]:
    window = verdict.window
    if window is None:
        return ["no window was needed"]
    if window.kind == "blocked":
        return list(_standstill(window))
    if window.first_iteration is None or window.last_iteration is None:
        return [f"{window.kind} window of {seconds(window.duration_s)}"]
    if window.kind == "trace":
        return [_recorded(window.first_iteration, window.last_iteration), seconds(window.duration_s)]
    last = max(window.last_iteration - 1, window.first_iteration)
    return [f"iterations {window.first_iteration}–{last}, {seconds(window.duration_s)}"]


def _recorded(first: int, last: int) -> str:
    """What a trace holds: the last iteration is not among them."""
    if last - first <= 1:
        return f"one recorded iteration ({first})"
    return f"{last - first} recorded iterations ({first}–{last - 1})"


def _standstill(window: VerdictWindow) -> Iterator[str]:
    """Where the job stands and since when."""
    first, last = window.first_iteration, window.last_iteration
    if first is not None and last is not None:
        yield f"stands after iteration {first}" if first == last else f"stands after iterations {first} to {last}"
    if window.duration_s:
        yield f"silent for {seconds(window.duration_s)}"


def _pace(verdict: Verdict) -> list[str]:
    before, now = verdict.iteration.baseline_ms, verdict.iteration.current_ms
    if now is None and before and _stands_still(verdict):
        return [f"{milliseconds(before)} per iteration until then"]
    if now is None:
        return []
    if not before:
        return [f"{milliseconds(now)} per iteration"]
    return [f"{milliseconds(now)} per iteration, {milliseconds(before)} at best ({change(before, now)})"]


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
    yield "function", _function(finding)
    yield "where", Text(_where(finding, everybody=not (_is_recorded(verdict) and verdict.coverage.missing)))
    if not _stands_still(verdict):
        yield "costs", Text(_price(finding, verdict.iteration.current_ms))
    table = numbers(finding, compared_with(finding, _is_recorded(verdict)))
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
    if callers:
        trail = callers[-_TRAIL_FRAMES:]
        dots = "… › " if len(callers) > len(trail) else ""
        shown.append(f"\n{dots}{' › '.join(trail)}", style="dim")
    return shown


def _where(finding: Finding, *, everybody: bool = True) -> str:
    hosts = [clean(host, 60) for host in finding.hosts]
    on = f" on {', '.join(hosts[:4])}{f' and {len(hosts) - 4} more hosts' if len(hosts) > 4 else ''}" if hosts else ""
    if finding.scope == "rotating":
        return f"moves from worker to worker{on}; none is to blame alone"
    if finding.scope == "all" and len(finding.workers) == 1:
        return worker_list(finding.workers) + on
    if finding.scope == "all" and finding.workers:
        return (f"all workers{on}") if everybody else worker_list(finding.workers) + on
    if finding.scope == "all":
        return f"how the job is laid out{on}; no worker is to blame"
    if finding.cause == "slow-link" and finding.role == "cause" and on:
        return f"the network link{on}; behind it {worker_list(finding.workers)}"
    return worker_list(finding.workers) + on


def _price(finding: Finding, iteration_ms: float | None) -> str:
    if finding.gain is None:
        return "unknown"
    cost = f"{percent(finding.gain)} of the iteration"
    return cost if iteration_ms is None else f"{cost}, {milliseconds(finding.gain * iteration_ms)} each time"


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
    state = "they stand still" if _stands_still(verdict) else "slow"
    return [Text(), Text(f"Only symptoms: {state} because they wait", style="dim"), *indented, *more]


def _symptom(finding: Finding, findings: Sequence[Finding]) -> str:
    causes = [other for other in findings if finding.order in other.explains]
    reason = " and ".join(f"{_awaited(cause)} ({cause.order})" for cause in causes)
    duration = finding.duration
    long = f", {milliseconds(duration.per_iteration_ms)} per iteration" if duration is not None else ""
    where = worker_list(finding.workers) if finding.scope == "some" else "all workers"
    return f"{clean(finding.function.name, 80)} on {where}{long}: waits for {reason or 'another worker'}"


def _awaited(cause: Finding) -> str:
    """What a symptom waits for: the cause's function, or its workers where no function is known."""
    return clean(cause.function.name, 60) if cause.function.name != NO_FUNCTION else worker_list(cause.workers)


def _coverage(verdict: Verdict) -> Iterator[Text]:
    coverage = verdict.coverage
    heard = f"Based on {coverage.workers_reported} of {coverage.workers_expected} workers"
    missing = f"; missing: {worker_list(coverage.missing)}" if coverage.missing else ""
    complete = coverage.workers_reported >= coverage.workers_expected and not coverage.missing
    yield Text(heard + missing, style="dim" if complete else "yellow")
    for note in coverage.notes[:_MOST_NOTES]:
        yield Text(f"Note: {sentence(note)}", style="dim")
    yield from left_out(len(coverage.notes) - _MOST_NOTES, "note")
    if _stands_still(verdict) and verdict.cost.trigger_to_verdict_s is not None:
        yield Text(f"Verdict {seconds(verdict.cost.trigger_to_verdict_s)} after the trigger", style="dim")


def _cost(verdict: Verdict) -> Text:
    cost = verdict.cost
    kept = f"{byte_size(cost.pattern_bytes)} kept of {byte_size(cost.raw_bytes)}"
    if _is_recorded(verdict):
        return Text(f"Reading cost: at most {seconds(cost.summarize_s)} a file, {kept}", style="dim")
    facts = [f"the job stood still for {seconds(cost.window_stall_s)}"]
    if cost.trigger_to_verdict_s is not None:
        facts.append(f"verdict {seconds(cost.trigger_to_verdict_s)} after the window")
    facts.append(f"summary {seconds(cost.summarize_s)}")
    facts.append(kept)
    return Text(f"Looking cost: {', '.join(facts)}", style="dim")
