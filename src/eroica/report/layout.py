"""What the reports in a terminal share: how parts are drawn, the headline, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rich.console import Console, RenderableType
from rich.text import Text

from eroica.report.phrases import opening


def draw(parts: Iterable[RenderableType], console: Console) -> None:
    """Draw on `console`, in its width and colors; names from the job as plain text.

    Where nobody sees the width (a file, a pipe), lines end where their text ends.
    """
    for part in parts:
        if console.is_terminal or console.quiet:
            console.print(part, highlight=False, markup=False, emoji=False, soft_wrap=False)
            continue
        with console.capture() as capture:
            console.print(part, highlight=False, markup=False, emoji=False, soft_wrap=False)
        console.file.write("".join(f"{text.rstrip()}\n" for text in capture.get().splitlines()))


def draw_rule(title: str, console: Console, align: Literal["left", "center"] = "center") -> None:
    """A line with a title; a short one where nobody sees the width."""
    if console.is_terminal:
        console.rule(Text(title, style="dim"), style="dim", align=align)
    else:
        draw([Text(f"─── {title} ───")], console)


def headline(word: str, summary: str, style: str) -> Text:
    """The word, then the sentence without a leading "Healthy: ", which the word says already."""
    return Text.assemble(Text(word.upper(), style=style), "  ", (opening(word, summary), "bold"))


def left_out(number: int, what: str) -> list[Text]:
    """One line on how many more there are, none if all are shown."""
    if number <= 0:
        return []
    return [Text(f"   and {number} more {what}{'s' if number > 1 else ''}, see the JSON", style="dim")]
