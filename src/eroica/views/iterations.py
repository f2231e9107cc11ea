"""Iteration times: of the job's whole life with windows and triggers, else of the iterations in the window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.history import IterationHistory, Mark
from eroica.model.series import decode_alike
from eroica.model.words import milliseconds
from eroica.views import svg
from eroica.views.material import Material
from eroica.views.svg import Facts, Picture, Scale, label, line, path, points, rect, tag, text_width, ticks, time

_ID, _TITLE = "iterations", "Iteration times"
_WIDTH = 960.0
#: Ticks below the plot.
_TICKS = 7
_PLOT, _BOTTOM, _LEFT, _RIGHT = 190.0, 44.0, 62.0, 28.0
#: Pixels above the plot for lines of names, each so many pixels high, and marks that get one.
_TOP, _LINES, _LINE, _MOST_NAMES = 62.0, 3, 17.0, 9
#: Steps with a hint.
_MOST_HINTS = 160
#: The line is cut at this multiple of the 98th percentile: one outlier (the first iteration compiles) must not flatten
#: all others.
_CUT = 2.5
_MOST_ROWS, _MOST_MARKS = 120, 60
_SHOWN = {
    "baseline": "healthy window",
    "trigger": "trigger",
    "window": "window",
    "verdict": "verdict",
    "blocked": "stands still",
}
#: Steps of the line; of more points the slowest of each step is kept.
_MOST_POINTS = 900


@dataclass(frozen=True, kw_only=True)
class Course:
    """Iteration times along one axis.

    Attributes:
        x: Seconds since the job's start, or the iteration's number; rising.
        mean_ms: Mean over workers.
        high_ms: Time of the slowest worker.
        notes: Hint of each point.
        is_time: Whether x is time.
        marks: Windows, triggers and verdicts; only with time.
        before_ms: Mean iteration that the verdict compares with.
    """

    x: NDArray[np.float64]
    mean_ms: NDArray[np.float64]
    high_ms: NDArray[np.float64]
    notes: tuple[str, ...]
    is_time: bool
    marks: tuple[Mark, ...] = ()
    before_ms: float | None = None


def _course(material: Material) -> Course | None:
    """Return the job's history, else the iterations in the window; None where none were kept."""
    is_time = material.history is not None and len(material.history.at_s) > 1
    history = material.history if is_time else _of_window(material)
    if history is None:
        return None
    chosen = _thinned(np.array(history.slowest_ms))
    columns = (np.array(getattr(history, name)) for name in ("at_s", "mean_ms", "slowest_ms"))
    x, mean_ms, slowest_ms = (column[chosen].astype(np.float64) for column in columns)
    return Course(
        x=x,
        mean_ms=mean_ms,
        high_ms=slowest_ms,
        notes=tuple(
            f"iteration {history.iteration[at]:,}: mean {milliseconds(history.mean_ms[at])}, slowest: worker "
            f"{history.slowest_worker[at]}, {milliseconds(history.slowest_ms[at])}"
            for at in chosen.tolist()
        ),
        is_time=is_time,
        marks=history.marks[-_MOST_MARKS:],
        before_ms=material.verdict.iteration.baseline_ms,
    )


def _of_window(material: Material) -> IterationHistory | None:
    """Return the iterations of the workers that captured all of them, each at its end; None without any."""
    try:
        each = decode_alike([pattern.iteration_us for pattern in material.patterns], np.float32)
    except InputError:
        return None
    longest = max(map(len, each), default=0)
    whole = [place for place, one in enumerate(each) if len(one) == longest]
    if not longest:
        return None
    ms_WI = np.array([each[place] for place in whole], dtype=np.float64) / 1e3
    first = material.patterns[whole[0]].first_iteration
    return IterationHistory(
        job="",
        began=0.0,
        at_s=tuple(range(first + 1, first + longest + 1)),
        iteration=tuple(range(first, first + longest)),
        mean_ms=tuple(ms_WI.mean(axis=0).tolist()),
        slowest_ms=tuple(ms_WI.max(axis=0).tolist()),
        slowest_worker=tuple(material.ranks[np.array(whole)[ms_WI.argmax(axis=0)]].tolist()),
    )


def _thinned(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the places of the highest value of each step."""
    if len(values) <= _MOST_POINTS:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), _MOST_POINTS + 1).astype(int)
    return np.array([begin + int(np.argmax(values[begin:end])) for begin, end in pairwise(edges)], dtype=np.intp)


def draw(material: Material) -> Picture | None:
    """Draw the job's history; without one, the window's own iterations."""
    course = _course(material)
    if course is None and (material.verdict.window is None or material.verdict.window.kind == "blocked"):
        return None
    title = _TITLE if course is None or course.is_time else "Iteration times in the window"
    if course is None:
        return Picture(id=_ID, title=title, missing="No iteration times were kept for this verdict.")
    if len(course.x) < 2:
        return Picture(id=_ID, title=title, missing=f"Only one was captured; {course.notes[0]}.")
    body = svg.join((tag("div", _draw(course, title), cls="scroll"), _legend(course)))
    before = " The dashed line is the mean iteration that the verdict compares with." if course.before_ms else ""
    reads = (
        "Each step is one captured iteration: its mean over all workers, and as a thin line the longest of any worker."
    )
    if course.is_time:
        reads = (
            "Each step is the mean iteration over all workers in a stretch of time; the thin line is the slowest "
            "worker. The colored bands are windows in which Eroica looked closely."
        )
    return Picture(id=_ID, title=title, body=body, reads=f"{reads}{before}", facts=_facts(course))


def _draw(course: Course, title: str) -> Markup:
    end = _TOP + _PLOT
    low = 0.0 if course.is_time else float(course.x[0]) - 1.0
    last = max(float(course.x[-1]), *(_until(mark) for mark in course.marks), low + 1e-9)
    x = Scale(low, last, _LEFT, _WIDTH - _RIGHT)
    values = course.high_ms[np.isfinite(course.high_ms)]
    usual = _CUT * float(np.percentile(values, 98)) if len(values) else 0.0
    highest = svg.roof(max(min(float(values.max(initial=0.0)), usual), course.before_ms or 0.0))
    y = Scale(0.0, highest, end, _TOP)
    parts = [
        *_bands(course, x, end),
        svg.left_axis(y, _LEFT, _WIDTH - _LEFT - _RIGHT, [(value, time(value)) for value in ticks(0.0, highest, 4)]),
        path(points(*_steps(course.x, course.high_ms, low, x, y)), cls="high"),
        path(points(*_steps(course.x, course.mean_ms, low, x, y)), cls="line"),
        *_flags(course, x, end),
        *_hovers(course, low, x, end),
        _bottom(course, x, end),
    ]
    if course.before_ms:
        parts.append(line(_LEFT, y(course.before_ms), _WIDTH - _RIGHT, y(course.before_ms), cls="before"))
    if values.max(initial=0.0) > highest:
        cut = f"cut off at {time(highest)}"
        parts.append(label(_WIDTH - _RIGHT, _TOP - 4, cut, text_anchor="end", cls="axis-title"))
    return svg.svg(_WIDTH, end + _BOTTOM, *parts, title=f"{title}: a line of steps", cls="wide")


def _steps(
    x_values: NDArray[np.float64], values: NDArray[np.float64], low: float, x: Scale, y: Scale
) -> tuple[list[float], list[float]]:
    """Return the corners of a line of steps; each value holds from the previous x to its own."""
    starts = [low, *x_values[:-1].tolist()]
    xs = [at for begin, end in zip(starts, x_values.tolist(), strict=True) for at in (x(begin), x(end))]
    return xs, [y(value) if np.isfinite(value) else value for value in values.tolist() for _ in range(2)]


def _until(mark: Mark) -> float:
    return mark.until_s if mark.until_s is not None and mark.kind != "trigger" else mark.at_s


def _bands(course: Course, x: Scale, end: float) -> Iterator[Markup]:
    """Yield windows as bands."""
    for mark in course.marks:
        if mark.kind in ("window", "baseline", "blocked"):
            left = x(mark.at_s)
            width = max(x(_until(mark)) - left, 3.0)
            yield rect(left, _TOP, width, end - _TOP, cls=f"band-{mark.kind}")


def _flags(course: Course, x: Scale, end: float) -> Iterator[Markup]:
    """Yield the most important marks, with names above the plot that take turns over its lines."""
    worth = {"trigger": 0, "window": 1, "blocked": 1, "verdict": 2, "baseline": 3}
    chosen = sorted(course.marks, key=lambda mark: worth[mark.kind])[:_MOST_NAMES]
    for at, mark in enumerate(sorted(chosen, key=lambda mark: mark.at_s)):
        place, name, height = x(mark.at_s), _flag_name(mark), _TOP - 10 - _LINE * (at % _LINES)
        half = text_width(name) / 2 + 8
        yield svg.tag(
            "g",
            line(place, height + 4, place, end, cls=f"flag flag-{mark.kind}"),
            label(
                min(max(place, half), _WIDTH - half),
                height,
                name,
                text_anchor="middle",
                cls=f"flag-text flag-{mark.kind}",
            ),
            svg.hint(f"{name}: {mark.text}" if mark.text else name),
        )


def _flag_name(mark: Mark) -> str:
    number = f" {mark.window_id}" if mark.window_id and mark.kind == "window" else ""
    return f"{_SHOWN[mark.kind]}{number}"


def _hovers(course: Course, low: float, x: Scale, end: float) -> Iterator[Markup]:
    """Yield invisible columns with a hint."""
    count = len(course.x)
    edges = np.unique(np.linspace(0, count, min(count, _MOST_HINTS) + 1).astype(int))
    for first, until in pairwise(edges.tolist()):
        left = x(float(course.x[first - 1])) if first else x(low)
        worst = first + int(np.argmax(course.high_ms[first:until]))
        right = x(float(course.x[until - 1]))
        yield rect(left, _TOP, right - left, end - _TOP, svg.hint(course.notes[worst]), cls="hover")


def _bottom(course: Course, x: Scale, end: float) -> Markup:
    if not course.is_time:
        whole = sorted({round(value) for value in ticks(x.low, x.high, _TICKS)})
        return svg.bottom_axis(x, end, [(value, f"{value:,}") for value in whole], "iteration")
    _, factor = _unit(x.high)
    texts = [(factor * value, _clock(factor * value, x.high)) for value in ticks(0.0, x.high / factor, _TICKS)]
    return svg.bottom_axis(x, end, texts, "since the job's start")


def _unit(until_s: float) -> tuple[str, float]:
    """Return the unit that suits an axis, and its seconds."""
    units = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))
    return next(((unit, size) for unit, size in units if until_s >= 3 * size), ("s", 1.0))


def _clock(value_s: float, until_s: float) -> str:
    unit, size = _unit(until_s)
    return f"{value_s / size:.4g} {unit}" if value_s else "0"


def _legend(course: Course) -> Markup:
    lines = [("line", "mean over workers"), ("high", "slowest worker")]
    if course.before_ms:
        lines.append(("before", f"before, {time(course.before_ms)}"))
    kinds = {mark.kind for mark in course.marks}
    shapes = [(line(0, 8, 16, 8, cls=cls), text) for cls, text in lines]
    shapes += [
        (rect(0, 2, 16, 12, cls=f"band-{kind}"), _SHOWN[kind])
        for kind in ("baseline", "window", "blocked")
        if kind in kinds
    ]
    return tag("ul", *(tag("li", svg.svg(16, 16, shape), text) for shape, text in shapes), cls="legend")


def _facts(course: Course) -> Facts:
    """Return the marks, then the times, thinned."""
    last_s = float(course.x[-1])
    happened = [(_clock(mark.at_s, last_s), _flag_name(mark), mark.text) for mark in course.marks]
    chosen = np.unique(np.linspace(0, len(course.x) - 1, min(len(course.x), _MOST_ROWS)).astype(int))
    told = [
        (
            _clock(float(course.x[at]), last_s) if course.is_time else f"{course.x[at] - 1:,.0f}",
            milliseconds(course.mean_ms[at]),
            course.notes[at],
        )
        for at in chosen.tolist()
    ]
    header = ("since the start" if course.is_time else "iteration", "mean, or what happened", "in words")
    return Facts(header, [*happened, *told])
