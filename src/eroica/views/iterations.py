"""Iteration times: of the job's whole life with windows and triggers, else of the iterations in the window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.history import IterationHistory, Mark
from eroica.model.pattern import WorkerPattern
from eroica.model.series import decode_series, decode_together
from eroica.model.words import milliseconds
from eroica.views.material import Material
from eroica.views.svg import (
    Facts,
    Picture,
    Scale,
    bottom_axis,
    facts,
    group,
    hint,
    join,
    label,
    left_axis,
    line,
    path,
    points,
    rect,
    roof,
    sign,
    svg,
    tag,
    text_width,
    ticks,
    time,
    times,
)

_ID, _TITLE = "iterations", "Iteration times"
_WIDTH = 960.0
#: Ticks below the plot.
_TICKS = 7
_PLOT, _BOTTOM, _LEFT, _RIGHT = 190.0, 44.0, 62.0, 28.0
#: Pixels above the plot: with three lines of names, and without.
_NAMES_TOP, _PLAIN_TOP = 62.0, 22.0
#: Steps with a hint.
_MOST_HINTS = 160
#: The line is cut at this multiple of the 98th percentile: one outlier (the first iteration compiles) must not flatten
#: all others.
_CUT = 2.5
_MOST_ROWS = 120
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


def of_job(material: Material) -> Course | None:
    """Return the job's history; None where none was kept."""
    history = material.history
    if history is None or len(history.at_s) < 2:
        return None
    chosen = _thinned(np.array(history.slowest_ms))
    columns = (np.array(getattr(history, name)) for name in ("at_s", "mean_ms", "slowest_ms"))
    at_s, mean_ms, slowest_ms = (column[chosen].astype(np.float64) for column in columns)
    notes = tuple(_history_note(history, int(at)) for at in chosen)
    return Course(
        x=at_s,
        mean_ms=mean_ms,
        high_ms=slowest_ms,
        notes=notes,
        is_time=True,
        marks=_own_marks(history.marks, material.window_id),
        before_ms=material.verdict.iteration.baseline_ms,
    )


def _history_note(history: IterationHistory, at: int) -> str:
    slowest = f"slowest: worker {history.slowest_worker[at]}, {milliseconds(history.slowest_ms[at])}"
    return f"iteration {history.iteration[at]:,}: mean {milliseconds(history.mean_ms[at])}, {slowest}"


def _own_marks(marks: Sequence[Mark], window_id: int) -> tuple[Mark, ...]:
    """Return the marks of the verdict's window, the trigger before it, and all other windows."""
    own = [mark for mark in marks if mark.kind == "baseline" or mark.window_id == window_id or not window_id]
    begin = min((mark.at_s for mark in own if mark.kind in ("window", "blocked")), default=float("inf"))
    triggers = [mark for mark in marks if mark.kind == "trigger" and mark.at_s <= begin]
    others = [mark for mark in marks if mark.kind in ("window", "blocked") and mark not in own]
    chosen = {*map(id, own), *map(id, triggers[-1:]), *map(id, others)}
    return tuple(mark for mark in marks if id(mark) in chosen)[-60:]


def of_window(material: Material) -> Course | None:
    """Return the iterations that all workers captured; None without patterns."""
    found = _series(material.patterns)
    if found is None:
        return None
    series, places = found
    chosen = _thinned(series.max(axis=0))
    mean, high = series.mean(axis=0)[chosen] / 1e3, series.max(axis=0)[chosen] / 1e3
    first = material.patterns[places[0]].first_iteration
    slowest = [material.ranks[places[at]] for at in series.argmax(axis=0)]
    notes = tuple(
        f"iteration {first + at:,}: mean {milliseconds(mean_ms)}, longest {milliseconds(high_ms)} "
        f"on worker {slowest[at]}"
        for at, mean_ms, high_ms in zip(chosen.tolist(), mean.tolist(), high.tolist(), strict=True)
    )
    before_ms = material.verdict.iteration.baseline_ms
    x = (first + 1 + chosen).astype(np.float64)
    return Course(x=x, mean_ms=mean, high_ms=high, notes=notes, is_time=False, before_ms=before_ms)


def _series(patterns: Sequence[WorkerPattern]) -> tuple[NDArray[np.float64], Sequence[int]] | None:
    """Return the iterations of the workers that captured all of them, and the places of these workers.

    Returns:
        Microseconds, float64 [W, I], and places; None where there are none.
    """
    try:
        together = decode_together([pattern.iteration_us for pattern in patterns], np.float32)
        if together is not None:
            return (together.astype(np.float64), range(len(together))) if together.size else None
        each = [decode_series(pattern.iteration_us, np.float32) for pattern in patterns]
    except InputError:
        return None
    longest = max(map(len, each), default=0)
    whole = [place for place, one in enumerate(each) if len(one) == longest]
    return (np.array([each[place] for place in whole], dtype=np.float64), whole) if longest else None


def _thinned(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the places of the highest value of each step."""
    if len(values) <= _MOST_POINTS:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), _MOST_POINTS + 1).astype(int)
    return np.array([begin + int(np.argmax(values[begin:end])) for begin, end in pairwise(edges)], dtype=np.intp)


def draw(material: Material) -> Picture | None:
    """Draw the job's history; without one, the window's own iterations."""
    course = of_job(material) or of_window(material)
    if course is None or len(course.x) < 2:
        if course is not None:
            return Picture(id=_ID, title=_title(course), missing=f"Only one was captured; {course.notes[0]}.")
        if material.verdict.window is None or material.verdict.window.kind == "blocked":
            return None
        return Picture(id=_ID, title=_TITLE, missing="No iteration times were kept for this verdict.")
    body = join((tag("div", _draw(course, material), cls="scroll"), _legend(course)))
    return Picture(id=_ID, title=_title(course), body=body, reads=_reads(course), facts=_facts(course))


def _title(course: Course) -> str:
    return _TITLE if course.is_time else "Iteration times in the window"


def _reads(course: Course) -> str:
    before = " The dashed line is the mean iteration that the verdict compares with." if course.before_ms else ""
    if course.is_time:
        return (
            "Each step is the mean iteration over all workers in a stretch of time; the thin line is the slowest "
            f"worker. The colored bands are windows in which Eroica looked closely.{before}"
        )
    return (
        "Each step is one captured iteration: its mean over all workers, and as a thin line the longest of any "
        f"worker.{before}"
    )


def _draw(course: Course, material: Material) -> Markup:
    end = _top(course) + _PLOT
    low = 0.0 if course.is_time else float(course.x[0]) - 1.0
    last = max(float(course.x[-1]), *(_until(mark) for mark in course.marks), low + 1e-9)
    x = Scale(low, last, _LEFT, _WIDTH - _RIGHT)
    highest, is_cut = _highest(course)
    y = Scale(0.0, highest, end, _top(course))
    parts = [
        *_bands(course, x, end),
        left_axis(y, _LEFT, _WIDTH - _LEFT - _RIGHT, times(ticks(0.0, highest, 4))),
        _before(course, y),
        path(points(*_steps(course.x, course.high_ms, low, x, y)), cls="high"),
        path(points(*_steps(course.x, course.mean_ms, low, x, y)), cls="line"),
        *_flags(course, x, end),
        *_hovers(course, low, x, end),
        _bottom(course, x, end),
        label(_WIDTH - _RIGHT, _top(course) - 4, f"cut off at {time(highest)}", text_anchor="end", cls="axis-title")
        if is_cut
        else None,
    ]
    return svg(_WIDTH, end + _BOTTOM, *parts, title=_spoken(course, material), cls="wide")


def _highest(course: Course) -> tuple[float, bool]:
    """Return the end of the time axis, and whether something is higher."""
    values = course.high_ms[np.isfinite(course.high_ms)]
    top = float(values.max(initial=0.0))
    usual = float(np.percentile(values, 98)) if len(values) else top
    room = max(min(top, _CUT * usual), course.before_ms or 0.0)
    return roof(room), top > roof(room)


def _top(course: Course) -> float:
    """Return the pixel at which the plot begins."""
    return _NAMES_TOP if course.marks else _PLAIN_TOP


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
            yield rect(left, _top(course), width, end - _top(course), cls=f"band-{mark.kind}")


def _before(course: Course, y: Scale) -> Markup | None:
    if not course.before_ms or course.before_ms > y.high:
        return None
    at = y(course.before_ms)
    return line(_LEFT, at, _WIDTH - _RIGHT, at, cls="before")


def _flags(course: Course, x: Scale, end: float) -> Iterator[Markup]:
    """Yield marks with names above the plot, in up to three lines."""
    free = [_LEFT - 30.0, _LEFT - 30.0, _LEFT - 30.0]
    for mark in _named(course.marks):
        at = x(mark.at_s)
        name = _flag_name(mark)
        half = text_width(name) / 2 + 6
        middle = min(max(at, half + 2), _WIDTH - half - 2)
        row = next((row for row, taken in enumerate(free) if middle - half >= taken), None)
        if row is None:
            continue
        free[row] = middle + half
        height = _top(course) - 10 - 17 * row
        yield group(
            line(at, height + 4, at, end, cls=f"flag flag-{mark.kind}"),
            label(middle, height, name, text_anchor="middle", cls=f"flag-text flag-{mark.kind}"),
            hint(f"{name}: {mark.text}" if mark.text else name),
        )


def _named(marks: Sequence[Mark]) -> list[Mark]:
    """Return the nine most important marks in order of time."""
    worth = {"trigger": 0, "window": 1, "blocked": 1, "verdict": 2, "baseline": 3}
    return sorted(sorted(marks, key=lambda mark: worth[mark.kind])[:9], key=lambda mark: mark.at_s)


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
        yield rect(left, _top(course), right - left, end - _top(course), hint(course.notes[worst]), cls="hover")


def _bottom(course: Course, x: Scale, end: float) -> Markup:
    if not course.is_time:
        whole = sorted({round(value) for value in ticks(x.low, x.high, _TICKS)})
        return bottom_axis(x, end, [(value, f"{value:,}") for value in whole], "iteration")
    return bottom_axis(x, end, [(value, _clock(value)) for value in _clock_ticks(x.high)], "since the job's start")


def _clock_ticks(until_s: float) -> list[float]:
    """Return round times: seconds, minutes, hours or days."""
    steps = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    step = next((step for step in steps if until_s / step <= _TICKS), 86400 * max(1, round(until_s / 86400 / _TICKS)))
    return [step * count for count in range(int(until_s / step) + 1)]


def _clock(value_s: float) -> str:
    if not value_s:
        return "0"
    days, rest = divmod(round(value_s), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, second = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (second, "s")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def _legend(course: Course) -> Markup:
    lines = [("line", "mean over workers"), ("high", "slowest worker")]
    if course.before_ms:
        lines.append(("before", f"before, {time(course.before_ms)}"))
    bands = [
        (kind, _SHOWN[kind])
        for kind in ("baseline", "window", "blocked")
        if any(mark.kind == kind for mark in course.marks)
    ]
    signs = [tag("li", sign(16, 16, line(0, 8, 16, 8, cls=cls)), text) for cls, text in lines]
    boxes = [tag("li", sign(16, 16, rect(0, 2, 16, 12, cls=f"band-{kind}")), text) for kind, text in bands]
    return tag("ul", *signs, *boxes, cls="legend")


def _spoken(course: Course, material: Material) -> str:
    now, before = material.verdict.iteration.current_ms, course.before_ms
    facts_known = [f"now {milliseconds(now)}" if now else "", f"before {milliseconds(before)}" if before else ""]
    return ": ".join((_title(course), ", ".join(filter(None, facts_known)) or "as a line of steps"))


def _facts(course: Course) -> Facts:
    """Return the marks, then the times, thinned."""
    happened = [(_clock(mark.at_s), _flag_name(mark), mark.text) for mark in course.marks]
    chosen = np.unique(np.linspace(0, len(course.x) - 1, min(len(course.x), _MOST_ROWS)).astype(int))
    times_told = [(_where(course, at), milliseconds(course.mean_ms[at]), course.notes[at]) for at in chosen.tolist()]
    header = ("since the start" if course.is_time else "iteration", "mean, or what happened", "in words")
    return facts(header, [*happened, *times_told])


def _where(course: Course, at: int) -> str:
    return _clock(float(course.x[at])) if course.is_time else f"{course.x[at] - 1:,.0f}"
