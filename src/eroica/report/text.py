"""Verdicts and comparisons in a terminal: the sentence, causes with evidence and next step, then symptoms.

Names from the job are written as plain text: console markup and control characters in them have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eroica.model.comparison import Comparison, FunctionChange, Side
from eroica.model.shares import percent
from eroica.model.verdict import NAMED, NO_FUNCTION, Finding, Hypothesis, Verdict
from eroica.model.words import clean, milliseconds, plural, sentence, worker_list
from eroica.report.phrases import (
    BREAKDOWN,
    breakdown_lines,
    cause_facts,
    compared_with,
    cost_facts,
    coverage_line,
    describe,
    describe_nearest,
    is_recorded,
    nearest_of,
    number_rows,
    opening,
    pace_facts,
    signs_of,
    stands_still,
    symptom_lines,
    window_facts,
)

STYLES = {"slow": "bold red", "blocked": "bold red", "healthy": "bold green", "undetermined": "bold yellow"}
_MOST_CAUSES = 5
_MOST_SYMPTOMS = 8
_MOST_NOTES = 6
_TRAIL_FRAMES = 3
_INDENTED = (0, 0, 0, 3)
_NOTHING = "Nothing else was considered: no rule saw an excess that could be a cause."
_COMPARED = {
    "regression": "bold red",
    "improvement": "bold green",
    "equal": "bold green",
    "undetermined": "bold yellow",
}
_WORSE = frozenset({"more-work", "slower", "outside-contention", "new"})
_MOST_CHANGES = 8
_MOST_WAITS = 4


def render_verdict(verdict: Verdict, console: Console) -> None:
    """Draw a verdict on `console`."""
    draw(build_report(verdict), console)


def build_report(verdict: Verdict) -> list[RenderableType]:
    """Return the parts of the report, from top to bottom."""
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    parts: list[RenderableType] = [
        headline(verdict.verdict, verdict.summary, STYLES[verdict.verdict]),
        *_circumstances(verdict),
    ]
    for finding in causes[:_MOST_CAUSES]:
        parts += [Text(), _cause(finding, verdict)]
    parts += left_out(len(causes) - _MOST_CAUSES, "cause")
    parts += legend(causes[:_MOST_CAUSES])
    parts += build_nearest(verdict)
    parts += _breakdown(verdict)
    parts += _symptoms(verdict)
    return [*parts, Text(), *_coverage(verdict)]


def _circumstances(verdict: Verdict) -> Iterator[Text]:
    facts = [f"job {clean(verdict.job, 60)}", *window_facts(verdict), *pace_facts(verdict)]
    yield Text(" · ".join(facts), style="dim")
    if verdict.window is not None and verdict.window.reason:
        yield Text(f"looked because: {sentence(verdict.window.reason)}", style="dim")


def _cause(finding: Finding, verdict: Verdict) -> RenderableType:
    title = Text.assemble(
        (f"{finding.order}  {clean(finding.cause, 60)}", "bold"),
        ("  ", ""),
        (f"confidence {percent(finding.confidence)}", "dim"),
    )
    return Group(title, Padding(_grid(_cause_rows(finding, verdict), 2), _INDENTED))


def _cause_rows(finding: Finding, verdict: Verdict) -> Iterator[tuple[str, RenderableType]]:
    if finding.function.name != NO_FUNCTION or finding.function.stack:
        yield "function", _function(finding)
    yield from ((term, Text(text)) for term, text in cause_facts(finding, verdict))
    peers = compared_with(finding, is_recorded(verdict))
    numbers = [(row.label, row.here, ((peers, row.peers), ("expected", row.expected))) for row in number_rows(finding)]
    if numbers:
        yield (
            "pattern",
            _grid(
                (label, Text.assemble((here, "bold"), *(f", {head} {value}" for head, value in others if value)))
                for label, here, others in numbers
            ),
        )
    if finding.evidence:
        yield "evidence", _grid(("•", Text(sentence(line))) for line in finding.evidence)
    if finding.next_step:
        yield "next", Text(sentence(finding.next_step), style="bold green")


def _function(finding: Finding) -> Text:
    function = finding.function
    shown = Text.assemble((clean(function.name), "bold cyan"), (f"  {function.kind}", "dim"))
    callers = [clean(frame, 80) for frame in function.stack if frame]
    named = [at for at, frame in enumerate(callers) if frame.split(" (", 1)[0] == clean(function.name)]
    if callers:
        trail, cut = callers[-_TRAIL_FRAMES:], len(callers) - _TRAIL_FRAMES
        if named and named[-1] < cut:  # the named function called into libraries
            trail = [callers[named[-1]], "…", *trail[1:]]
        shown.append(f"\n{'… › ' if cut > 0 else ''}{' › '.join(trail)}", style="dim")
    return shown


def _breakdown(verdict: Verdict) -> list[RenderableType]:
    lines = [Padding(Text(line), _INDENTED) for line in breakdown_lines(verdict)]
    return [Text(), Text(f"{BREAKDOWN[0]}. {BREAKDOWN[1]}", style="dim"), *lines] if lines else []


def _symptoms(verdict: Verdict) -> list[RenderableType]:
    lines = symptom_lines(verdict)
    if not lines:
        return []
    state = "they stand still" if stands_still(verdict) else "slow"
    shown = [Padding(Text(line, style="dim"), _INDENTED) for line in lines[:_MOST_SYMPTOMS]]
    head = Text(f"Only symptoms: {state} because they wait", style="dim")
    return [Text(), head, *shown, *left_out(len(lines) - _MOST_SYMPTOMS, "symptom")]


def _coverage(verdict: Verdict) -> Iterator[Text]:
    coverage = verdict.coverage
    complete = coverage.workers_reported >= coverage.workers_expected and not coverage.missing
    yield Text(coverage_line(verdict), style="dim" if complete else "yellow")
    yield from note_lines(coverage.notes)
    costs = ", ".join(f"{term} {value}" for term, value in cost_facts(verdict))
    if verdict.found_by == "communication":
        yield Text("Told by communication alone: a window says what it is", style="dim")
    if costs:
        yield Text(f"{'Reading' if is_recorded(verdict) else 'Looking'} cost: {costs}", style="dim")


def note_lines(notes: Sequence[str]) -> Iterator[Text]:
    """Yield the first notes, and how many more there are."""
    for note in notes[:_MOST_NOTES]:
        yield Text(f"Note: {sentence(note)}", style="dim")
    yield from left_out(len(notes) - _MOST_NOTES, "note")


# --- hypotheses ---


def build_why(verdict: Verdict) -> list[RenderableType]:
    """Return all hypotheses of a verdict."""
    if not verdict.considered and verdict.breakdown is not None:
        return [Text(), Text(f"{_NOTHING} What an iteration is made of stands above.", style="dim")]
    if not verdict.considered:
        return [Text(), Text(_NOTHING, style="dim")]
    parts: list[RenderableType] = [Text(), Text("Considered", style="bold")]
    for one in verdict.considered:
        parts += [_hypothesis(one)]
    return parts


def build_nearest(verdict: Verdict) -> list[RenderableType]:
    """Return the nearest explanations of an undetermined verdict."""
    nearest = nearest_of(verdict)
    if not nearest:
        return []
    lines = [Padding(Text(line, style="dim"), _INDENTED) for line in map(describe_nearest, nearest)]
    return [Text(), Text("Nearest explanations", style="dim"), *lines]


def _hypothesis(one: Hypothesis) -> RenderableType:
    named = one.decision == NAMED
    title = Text(describe(one), style="bold" if named else "")
    title.append(f": {sentence(one.decision)}", style="green" if named else "dim")
    signs = _grid((mark, Text(text, style="dim")) for mark, text in signs_of(one))
    return Group(Padding(title, _INDENTED), Padding(signs, (0, 0, 0, 6)))


# --- comparisons ---


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Draw a comparison on `console`."""
    own = [change for change in comparison.changes if change.reason != "waiting"]
    waits = [change for change in comparison.changes if change.reason == "waiting"]
    parts: list[RenderableType] = [
        headline(comparison.comparison, comparison.summary, _COMPARED[comparison.comparison]),
        _grid([("before", _side(comparison.before)), ("after", _side(comparison.after))], 2),
    ]
    for change in own[:_MOST_CHANGES]:
        parts += [Text(), _change(change)]
    parts += left_out(len(own) - _MOST_CHANGES, "change")
    if waits:
        parts += [Text(), Text("Only symptoms: waiting for other workers", style="dim")]
        for one in waits[:_MOST_WAITS]:
            told = f"{clean(one.name, 80)} on {worker_list(one.workers)}: {_signed(one.change_ms)} per iteration"
            parts += [Padding(Text(told, style="dim"), _INDENTED)]
        parts += left_out(len(waits) - _MOST_WAITS, "symptom")
    foot = list(_foot(comparison))
    draw([*parts, Text(), *foot] if foot else parts, console)


def _side(side: Side) -> Text:
    facts = f"{plural(len(side.workers), 'worker')}, {plural(side.iterations, 'iteration')}"
    mean = f" of {milliseconds(side.iteration_ms)}" if side.iteration_ms else ""
    return Text(f"{clean(side.name, 120)} · {facts}{mean}", style="dim")


def _change(change: FunctionChange) -> RenderableType:
    style = "bold red" if change.reason in _WORSE else "bold green"
    title = Text.assemble(
        (f"{change.order}  ", "bold"),
        (clean(change.name), "bold cyan"),
        (f"  {_kind(change)}  ", "dim"),
        (f"{change.reason}", style),
        (f"  confidence {percent(change.confidence)}", "dim"),
    )
    return Group(title, Padding(_grid(_change_rows(change), 2), _INDENTED))


def _kind(change: FunctionChange) -> str:
    if change.functions > 1:
        return f"{change.functions} functions"
    return change.kind if change.phase == "other" else f"{change.kind}, {change.phase}"


def _change_rows(change: FunctionChange) -> Iterator[tuple[str, RenderableType]]:
    callers = [clean(frame, 80) for frame in change.stack if frame]
    if callers:
        dots = "… › " if len(callers) > _TRAIL_FRAMES else ""
        yield "called", Text(dots + " › ".join(callers[-_TRAIL_FRAMES:]), style="dim")
    yield "where", Text(worker_list(change.workers))
    spent = f"{milliseconds(change.before_ms)} → {milliseconds(change.after_ms)}"
    share = f"{percent(abs(change.share))} of the iteration before"
    yield "costs", Text(f"{_signed(change.change_ms)} per iteration ({spent}), {share}")
    if change.text:
        yield "why", Text(sentence(change.text))


def _signed(value_ms: float) -> str:
    return f"{'−' if value_ms < 0 else '+'}{milliseconds(abs(value_ms))}"


def _foot(comparison: Comparison) -> Iterator[Text]:
    if comparison.explained is not None:
        yield Text(f"These changes explain {percent(comparison.explained)} of the iteration's change", style="dim")
    sides = (("before", comparison.before), ("after", comparison.after))
    notes: Sequence[str] = [
        *comparison.notes,
        *(f"{label}: {note}" for label, side in sides for note in side.notes),
    ]
    yield from note_lines(notes)


# --- parts of all reports ---


def draw(parts: Iterable[RenderableType], console: Console) -> None:
    """Draw on `console` in its width and colors; in a file or pipe, without trailing spaces."""
    for part in parts:
        if console.is_terminal or console.quiet:
            console.print(part, highlight=False, markup=False, emoji=False, soft_wrap=False)
            continue
        with console.capture() as capture:
            console.print(part, highlight=False, markup=False, emoji=False, soft_wrap=False)
        console.file.write("".join(f"{text.rstrip()}\n" for text in capture.get().splitlines()))


def _grid(rows: Iterable[tuple[str, RenderableType]], gap: int = 1) -> Table:
    """Return rows of a label and what belongs to it."""
    table = Table.grid(padding=(0, gap), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for label, value in rows:
        table.add_row(label, value)
    return table


def rule(title: str) -> Text:
    """Return a line with a title."""
    return Text(f"─── {title} ───", style="dim")


def headline(word: str, summary: str, style: str) -> Text:
    """Return the word and the sentence."""
    return Text.assemble(Text(word.upper(), style=style), "  ", (opening(word, summary), "bold"))


def left_out(number: int, what: str) -> list[Text]:
    """Return one line on how many more there are, none if all are shown."""
    if number <= 0:
        return []
    return [Text(f"   and {number} more {what}{'s' if number > 1 else ''}, see the JSON", style="dim")]


def legend(findings: Sequence[Finding]) -> list[RenderableType]:
    """Return the meaning of the letters in the tables."""
    shown = [
        ("β share of time on the critical path", any(one.pattern is not None for one in findings)),
        ("μ mean use meanwhile", any(one.resource is not None for one in findings)),
        ("σ its spread", any(one.pattern is not None and one.pattern.sigma for one in findings)),
    ]
    words = [text for text, is_shown in shown if is_shown]
    return [Padding(Text(" · ".join(words), style="dim"), _INDENTED)] if words else []
