"""The small table under a cause: its numbers here, on peers (or before, or what is allowed), and what is expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eroica.model.shares import percent
from eroica.model.verdict import NO_FUNCTION, Finding, ResourceUse
from eroica.report.words import amount, clean, milliseconds

#: Cells that the labels may lose before their words would be broken.
_FOLDED = 4
#: Wider than any table of numbers.
_AMPLE = 500


class NumberRow(NamedTuple):
    """One line: what, here, on peers, what is expected, as text; then both numbers in the same unit, for bars."""

    label: str
    here: str
    peers: str
    expected: str
    value: float
    peers_value: float | None


def compared_with(finding: Finding, recorded: bool) -> str:
    """Head of the column beside "here"."""
    if finding.scope != "all":
        return "peers"
    return "limit" if recorded else "before"


class NumberTable:
    """The table, or, where it has no room, the same line by line.

    Args:
        rows: At least one.
        compared_with: Head of the column beside "here".
    """

    def __init__(self, rows: Sequence[NumberRow], compared_with: str) -> None:
        self._rows = rows
        self._compared_with = compared_with

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Choose by the width there is."""
        table = _table(self._rows, self._compared_with)
        wanted = console.measure(table, options=options.update_width(_AMPLE)).maximum
        if wanted - _FOLDED <= options.max_width:
            yield table
            return
        for row in self._rows:
            others = ((self._compared_with, row.peers), ("expected", row.expected))
            facts = [f"{row.label} {row.here}", *(f"{head} {value}" for head, value in others if value)]
            yield Text(", ".join(facts))


def numbers(finding: Finding, compared_with: str) -> NumberTable | None:
    """Small table: here, peers (or before, or what is allowed, where all workers are slow), expected."""
    rows = list(number_rows(finding))
    return NumberTable(rows, compared_with) if rows else None


def _table(rows: Sequence[NumberRow], compared_with: str) -> Table:
    columns = 4 if any(row.expected for row in rows) else 3
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold", style="dim")
    for style in ("bold", "", "dim")[: columns - 1]:
        table.add_column(justify="right", no_wrap=True, style=style)
    heads = ("iteration", "here", compared_with, "expected")
    table.add_row(*(Text(head, style="dim not bold") for head in heads[:columns]))
    for row in rows:
        table.add_row(*map(Text, (row.label, row.here, row.peers, row.expected)[:columns]))
    return table


def number_rows(finding: Finding) -> Iterator[NumberRow]:
    """What is on record of a finding, line by line."""
    pattern, duration = finding.pattern, finding.duration
    if pattern is not None:
        beta = (pattern.peers or {}).get("beta")
        expected = _range(pattern.expected.get("beta"))
        yield NumberRow("critical β", percent(pattern.beta), _share(beta), expected, pattern.beta, beta)
    if duration is not None:
        label = "others wait" if _is_waiting_alone(finding) else "duration"
        here, peers = duration.per_iteration_ms, duration.peers_ms
        yield NumberRow(label, milliseconds(here), _time(peers), "", here, peers)
        if duration.count_per_iteration or duration.peers_count:
            count, others = duration.count_per_iteration, duration.peers_count
            yield NumberRow("calls", f"{count:.1f}", _count(others), "", count, others)
    if finding.resource is not None:
        yield _resource(finding.resource)
    if pattern is not None and pattern.sigma:
        sigma = (pattern.peers or {}).get("sigma")
        label = f"{_channel(finding)} σ".strip()
        yield NumberRow(label, percent(pattern.sigma), _share(sigma), "", pattern.sigma, sigma)


def legend(findings: Sequence[Finding]) -> list[RenderableType]:
    """What the letters in the small tables mean, as far as they stand there."""
    shown = [
        ("β share of time on the critical path", any(one.pattern is not None for one in findings)),
        ("μ mean use meanwhile", any(one.resource is not None for one in findings)),
        ("σ its spread", any(one.pattern is not None and one.pattern.sigma for one in findings)),
    ]
    words = [text for text, is_shown in shown if is_shown]
    return [Padding(Text(" · ".join(words), style="dim"), (0, 0, 0, 3))] if words else []


def _is_waiting_alone(finding: Finding) -> bool:
    """A late worker without a function to blame: what was measured is the waiting of the others."""
    duration = finding.duration
    unknown = finding.role == "cause" and finding.function.name == NO_FUNCTION
    return unknown and finding.pattern is None and duration is not None and duration.peers_ms is None


def _resource(resource: ResourceUse) -> NumberRow:
    peers = "" if resource.peers_mean is None else amount(resource.peers_mean, resource.unit)
    here = amount(resource.mean, resource.unit)
    return NumberRow(f"{clean(resource.name, 24)} μ", here, peers, "", resource.mean, resource.peers_mean)


def _channel(finding: Finding) -> str:
    return clean(finding.resource.name, 24) if finding.resource is not None else ""


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _time(value: float | None) -> str:
    return "" if value is None else milliseconds(value)


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _range(bounds: tuple[float, float] | None) -> str:
    """Bounds as percent; "" where everything is within them."""
    return (
        ""
        if bounds is None or bounds[1] - bounds[0] >= 1.0
        else f"{percent(bounds[0]).removesuffix(' %')}–{percent(bounds[1])}"
    )
