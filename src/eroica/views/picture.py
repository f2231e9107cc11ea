"""What a picture hands to the page, and the text that says the same without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

#: A text alternative longer than this is no help; the JSON has everything.
MOST_ROWS = 200
_NOTHING = Markup()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A picture's facts as a table, for readers of screens and for copying.

    Attributes:
        header: Heads of the columns; the first column names the row.
        rows: Cells as text for people, not yet escaped; as many as `header` in each.
        left_out: Rows that are not listed; the page says so.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0


def facts(header: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST_ROWS) -> Facts:
    """The first `most` rows, and how many more there are."""
    shown = tuple(tuple(row) for row in rows[:most])
    return Facts(header=tuple(header), rows=shown, left_out=max(0, len(rows) - most))


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture of the report.

    Attributes:
        id: The figure's id in the page and the name under which the script finds it: lower case letters and hyphens.
        title: Heading: what is to be seen, some words, no full stop.
        body: SVG (`eroica.views.svg.svg`) or HTML, escaped already; empty where there is no picture.
        reads: One sentence: how to read it.
        facts: The same facts as text, shown on demand; None where the body is a table itself.
        data: What the script needs for hover and zoom, JSON-able and small; None without a script.
        missing: Why there is no picture, one sentence that is shown in its place; empty where there is one.

    In the page the body stands in `<div class="body">` inside `<figure id="picture-{id}">`. The data stands beside it
    as JSON, and the script calls `eroica.pictures[id](figure, data)` once the figure comes near the screen. Pictures
    must be worth looking at without that. Inline `style` attributes are refused by the page's security policy: use
    classes (`web/report.css`) or SVG's own attributes.
    """

    id: str
    title: str
    body: Markup = _NOTHING
    reads: str = ""
    facts: Facts | None = None
    data: Mapping[str, object] | None = None
    missing: str = ""
