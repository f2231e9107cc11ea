"""A report as data, and its two forms: one offline HTML page, and text for the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
    """A picture: lines, steps (distribution functions), points, or bars with a label at each x."""

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
    notes: Sequence[str] = field(default_factory=tuple)


def write_html(report: Report, path: Path) -> None:
    """Write the report as one HTML page that needs no network."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    pictures = [draw(chart) for chart in report.charts]
    path.write_text(environment.get_template("page.html").render(report=report, pictures=pictures), encoding="utf-8")


def draw(chart: Chart) -> str:
    """Return a chart as SVG. Its names are input, so control characters are replaced."""
    series_names = [_printable(series.name) for series in chart.series]
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "servegen", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for number, (series, name) in enumerate(zip(chart.series, series_names, strict=True)):
            if chart.kind == "bars":
                width = 0.8 / len(chart.series)
                x = np.arange(len(series.y)) + (number - (len(chart.series) - 1) / 2) * width
                errors = (
                    np.array([np.subtract(series.y, series.low), np.subtract(series.high, series.y)])
                    if len(series.low)
                    else None
                )
                axes.bar(x, series.y, width, label=name, yerr=errors, capsize=2)
            elif chart.kind == "points":
                axes.plot(series.x, series.y, ".", markersize=3, label=name)
            else:
                axes.plot(series.x, series.y, label=name, drawstyle="steps-post" if chart.kind == "step" else "default")
                if len(series.low):
                    axes.fill_between(np.asarray(series.x), series.low, series.high, alpha=0.2)
        if chart.kind == "bars":
            axes.set_xticks(
                range(len(chart.labels)), [_printable(label) for label in chart.labels], rotation=20, ha="right"
            )
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
            top = float(np.nanmax(series.y))
            name = f"{chart.title}, {series.name}" if len(chart.series) > 1 else chart.title
            console.print(
                f"\n{_plain(name)}  (up to {top:.4g} {chart.y_label})\n{spark(series.y)}",
                highlight=False,
                soft_wrap=True,
            )
    for table in report.tables:
        drawn = RichTable(title=_plain(table.title), box=rich.box.SIMPLE_HEAD, title_justify="left")
        for number, name in enumerate(table.header):
            drawn.add_column(_plain(name), justify="left" if number == 0 else "right", no_wrap=number == 0)
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
    top = array.max() if len(array) and array.max() > 0 else 1.0
    return "".join(BLOCKS[round(float(np.clip(value / top, 0, 1)) * (len(BLOCKS) - 1))] for value in array)
