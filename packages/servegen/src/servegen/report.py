"""A report as data, and its two forms: one offline HTML page, and text for the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
import numpy as np
import rich.box
from rich.console import Console
from rich.table import Table as RichTable

#: Levels of a chart's line in the terminal.
BLOCKS = " ▁▂▃▄▅▆▇█"
#: Columns of such a line.
COLUMNS = 72


@dataclass(frozen=True)
class Series:
    """One line, or set of points, of a chart; `low` and `high` are the ends of intervals."""

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray = ()
    high: Sequence[float] | np.ndarray = ()


@dataclass(frozen=True)
class Chart:
    """A picture: lines, steps (distribution functions), points, or bars of one series with a label at each x."""

    title: str
    series: Sequence[Series]
    x_label: str
    y_label: str
    kind: Literal["line", "step", "points", "bars"] = "line"
    log_x: bool = False
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Report:
    """What a command found: one sentence, pictures, tables and notes."""

    title: str
    verdict: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


def write_html(report: Report, path: Path) -> None:
    """Write the report as one HTML page that needs no network."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    pictures = [draw(chart) for chart in report.charts]
    path.write_text(environment.get_template("page.html").render(report=report, pictures=pictures), "utf-8")


def draw(chart: Chart) -> str:
    """Return a chart as SVG. Its names are input, so control characters are replaced."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    styles: dict[str, dict[str, Any]] = {
        "points": {"linestyle": "", "marker": ".", "markersize": 3},
        "step": {"drawstyle": "steps-post"},
    }
    with rc_context({"svg.hashsalt": "servegen", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for series in chart.series:
            if chart.kind == "bars":
                ends = [np.subtract(series.y, series.low), np.subtract(series.high, series.y)]
                axes.bar(series.x, series.y, yerr=np.array(ends) if len(series.low) else None, capsize=2)
            else:
                axes.plot(series.x, series.y, label=_printable(series.name), **styles.get(chart.kind, {}))
        if chart.kind == "bars":
            axes.set_xticks(range(len(chart.labels)), [*map(_printable, chart.labels)], rotation=20, ha="right")
        else:
            axes.set_xscale("log" if chart.log_x else "linear")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
        axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
        axes.grid(alpha=0.3)
        if len(chart.series) > 1:
            axes.legend(fontsize=7)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def print_text(report: Report, console: Console) -> None:
    """Print the report to the terminal."""
    console.print(f"[bold]{_plain(report.title)}[/bold]\n{_plain(report.verdict)}", highlight=False)
    for chart in report.charts:
        if chart.kind in ("line", "bars") and chart.series and len(chart.series[0].y):
            series = chart.series[0]
            name = f"{chart.title}, {series.name}" if len(chart.series) > 1 else chart.title
            head = f"{_plain(name)}  (up to {float(np.nanmax(series.y)):.4g} {chart.y_label})"
            console.print(f"\n{head}\n{spark(series.y)}", highlight=False, soft_wrap=True)
    for table in report.tables:
        drawn = RichTable(title=_plain(table.title), box=rich.box.SIMPLE_HEAD, title_justify="left")
        for number, name in enumerate(table.header):
            drawn.add_column(_plain(name), justify="right" if number else "left", no_wrap=not number)
        for row in table.rows:
            drawn.add_row(*map(_plain, row))
        console.print(drawn)
    for note in report.notes:
        console.print(f"note: {_plain(note)}", highlight=False)


def _plain(text: str) -> str:
    """Return text without markup or control characters: names in a log are input."""
    return _printable(text).replace("[", "\\[")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def spark(values: Sequence[float] | np.ndarray) -> str:
    """Return values as one line of blocks, at most COLUMNS of them."""
    array = np.nan_to_num(np.asarray(values, float))
    if len(array) > COLUMNS:
        array = np.array([part.mean() for part in np.array_split(array, COLUMNS)])
    levels = np.clip(array / max(array.max(initial=0), 1e-300), 0, 1) * (len(BLOCKS) - 1)
    return "".join(BLOCKS[level] for level in np.rint(levels).astype(int))
