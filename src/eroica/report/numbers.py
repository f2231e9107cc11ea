"""The small table under a cause: its numbers here, on peers (or before, or what is allowed), and what is expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eroica.model.shares import percent
from eroica.model.verdict import NO_FUNCTION, Finding, ResourceUse
from eroica.report.words import amount, clean, milliseconds


def compared_with(finding: Finding, recorded: bool) -> str:
    """Head of the column beside "here"."""
    if finding.scope != "all":
        return "peers"
    return "limit" if recorded else "before"


def numbers(finding: Finding, compared_with: str) -> Table | None:
    """Small table: here, peers (or before, or what is allowed, where all workers are slow), expected."""
    rows = list(_number_rows(finding))
    if not rows:
        return None
    columns = 4 if any(row[3] for row in rows) else 3
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold", style="dim")
    for style in ("bold", "", "dim")[: columns - 1]:
        table.add_column(justify="right", no_wrap=True, style=style)
    heads = ("iteration", "here", compared_with, "expected")
    table.add_row(*(Text(head, style="dim not bold") for head in heads[:columns]))
    for row in rows:
        table.add_row(*map(Text, row[:columns]))
    return table


def _number_rows(finding: Finding) -> Iterator[tuple[str, str, str, str]]:
    pattern, duration = finding.pattern, finding.duration
    if pattern is not None:
        peers = pattern.peers or {}
        yield (
            "critical β",
            percent(pattern.beta),
            _share(peers.get("beta")),
            _range(pattern.expected.get("beta")),
        )
    if duration is not None:
        label = "others wait" if _is_waiting_alone(finding) else "duration"
        yield label, milliseconds(duration.per_iteration_ms), _time(duration.peers_ms), ""
        if duration.count_per_iteration or duration.peers_count:
            yield "calls", f"{duration.count_per_iteration:.1f}", _count(duration.peers_count), ""
    if finding.resource is not None:
        yield _resource(finding.resource)
    if pattern is not None and pattern.sigma:
        peers = pattern.peers or {}
        yield f"{_channel(finding)} σ".strip(), percent(pattern.sigma), _share(peers.get("sigma")), ""


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


def _resource(resource: ResourceUse) -> tuple[str, str, str, str]:
    peers = "" if resource.peers_mean is None else amount(resource.peers_mean, resource.unit)
    return f"{clean(resource.name, 24)} μ", amount(resource.mean, resource.unit), peers, ""


def _channel(finding: Finding) -> str:
    return clean(finding.resource.name, 24) if finding.resource is not None else ""


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _time(value: float | None) -> str:
    return "" if value is None else milliseconds(value)


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _range(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"{percent(bounds[0]).removesuffix(' %')}–{percent(bounds[1])}"
