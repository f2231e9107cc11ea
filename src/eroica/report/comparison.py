"""Two runs side by side in a terminal: the sentence first, then what changed, then what only waits, dimmed.

Names come from the jobs and are written as plain text, as in `eroica.report.text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eroica.model.comparison import Comparison, FunctionChange, Side
from eroica.model.shares import percent
from eroica.report.layout import draw, headline, left_out
from eroica.report.words import clean, milliseconds, sentence, worker_list

_STYLES = {"regression": "bold red", "improvement": "bold green", "equal": "bold green", "undetermined": "bold yellow"}
_WORSE = frozenset({"more-work", "slower", "outside-contention", "new"})
_MOST_CHANGES = 8
_MOST_WAITS = 4
_MOST_NOTES = 6
_TRAIL_FRAMES = 3


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Draw `comparison` on `console`, in its width and colors (none under `NO_COLOR` or in a file)."""
    draw(build_report(comparison), console)


def build_report(comparison: Comparison) -> list[RenderableType]:
    """The parts of the report, from top to bottom."""
    own = [change for change in comparison.changes if change.reason != "waiting"]
    waits = [change for change in comparison.changes if change.reason == "waiting"]
    parts: list[RenderableType] = [
        headline(comparison.comparison, comparison.summary, _STYLES[comparison.comparison]),
        _sides(comparison),
    ]
    for change in own[:_MOST_CHANGES]:
        parts += [Text(), _change(change)]
    parts += left_out(len(own) - _MOST_CHANGES, "change")
    if waits:
        parts += [Text(), Text("Only symptoms: waiting for other workers", style="dim")]
        parts += [Padding(Text(_wait(change), style="dim"), (0, 0, 0, 3)) for change in waits[:_MOST_WAITS]]
        parts += left_out(len(waits) - _MOST_WAITS, "symptom")
    foot = list(_foot(comparison))
    return [*parts, Text(), *foot] if foot else parts


def _sides(comparison: Comparison) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="dim", ratio=1, overflow="fold")
    for label, side in (("before", comparison.before), ("after", comparison.after)):
        table.add_row(label, Text(_side(side)))
    return table


def _side(side: Side) -> str:
    workers, iterations = len(side.workers), side.iterations
    facts = f"{workers} worker{'s' if workers != 1 else ''}, {iterations} iteration{'s' if iterations != 1 else ''}"
    mean = f" of {milliseconds(side.iteration_ms)}" if side.iteration_ms else ""
    return f"{clean(side.name, 120)} · {facts}{mean}"


def _change(change: FunctionChange) -> RenderableType:
    style = "bold red" if change.reason in _WORSE else "bold green"
    title = Text.assemble(
        (f"{change.order}  ", "bold"),
        (clean(change.name), "bold cyan"),
        (f"  {_kind(change)}  ", "dim"),
        (f"{change.reason}", style),
        (f"  confidence {percent(change.confidence)}", "dim"),
    )
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1, overflow="fold")
    for label, value in _change_rows(change):
        rows.add_row(label, value)
    return Group(title, Padding(rows, (0, 0, 0, 3)))


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
    yield "costs", Text(_price(change))
    if change.text:
        yield "why", Text(sentence(change.text))


def _price(change: FunctionChange) -> str:
    spent = f"{_signed(change.change_ms)} per iteration ({milliseconds(change.before_ms)} → "
    share = f"{percent(abs(change.share))} of the iteration before"
    return f"{spent}{milliseconds(change.after_ms)}), {share}"


def _signed(value_ms: float) -> str:
    return f"{'−' if value_ms < 0 else '+'}{milliseconds(abs(value_ms))}"


def _wait(change: FunctionChange) -> str:
    return f"{clean(change.name, 80)} on {worker_list(change.workers)}: {_signed(change.change_ms)} per iteration"


def _foot(comparison: Comparison) -> Iterator[Text]:
    if comparison.explained is not None:
        yield Text(f"These changes explain {percent(comparison.explained)} of the iteration's change", style="dim")
    sides = (("before", comparison.before), ("after", comparison.after))
    notes: Sequence[str] = [
        *comparison.notes,
        *(f"{label}: {note}" for label, side in sides for note in side.notes),
    ]
    for note in notes[:_MOST_NOTES]:
        yield Text(f"Note: {sentence(note)}", style="dim")
    yield from left_out(len(notes) - _MOST_NOTES, "note")
