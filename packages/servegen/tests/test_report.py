from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from servegen.report import Chart, Report, Series, Table, draw, print_text, spark, write_html

EVIL = '<script src="https://example.org/x.js">$x_1$</script>\x1b[31m[red]'
REPORT = Report(
    f"Pool {EVIL}",
    "All is well.",
    [
        Chart("Rate", [Series("rate", range(50), np.linspace(0, 3, 50))], "hour", "requests/s"),
        Chart(
            "Factors",
            [Series("f", range(2), [1.0, 2.0], [0.5, 1.5], [1.5, 2.5])],
            "client",
            "factor",
            "bars",
            labels=["a", EVIL],
        ),
        Chart(
            "CDF",
            [Series("a", [1, 10, 100], [0.1, 0.5, 1.0]), Series(EVIL, [1, 10], [0.4, 1.0])],
            "tokens",
            "share",
            "step",
            True,
        ),
        Chart("Empty", [Series("none", [], [])], "x", "y", "points"),
    ],
    [Table("Clients", ["client", "share"], [[EVIL, "10%"]])],
    [f"note {EVIL}"],
)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list]] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found.append((tag, attrs))


def test_a_page_is_one_file_without_a_network_and_names_are_escaped(tmp_path: Path) -> None:
    write_html(REPORT, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert not {"script", "link", "img", "iframe", "object"} & {name for name, _ in tags.found}
    assert all(
        value.startswith("#")
        for _, attributes in tags.found
        for key, value in attributes
        if key.endswith(("src", "href"))
    )
    assert "url(http" not in page
    assert page.count("<svg") == 4
    assert page.index("<svg") < page.index("<table")  # pictures first


def test_a_picture_is_the_same_each_time() -> None:
    assert draw(REPORT.charts[0]) == draw(REPORT.charts[0])


def test_text_for_the_terminal_has_no_markup_from_names() -> None:
    text = io.StringIO()
    print_text(REPORT, Console(file=text, width=200, force_terminal=False))
    assert "\x1b" not in text.getvalue()
    assert "[red]" in text.getvalue()
    assert "All is well." in text.getvalue()


@pytest.mark.parametrize("values", [[], [0.0], [1.0, 2.0], np.arange(1000.0), [float("nan"), 1.0]])
def test_lines_of_blocks_have_at_most_72_columns(values: list[float]) -> None:
    assert len(spark(values)) == min(len(values), 72)
