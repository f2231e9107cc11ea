"""Iteration times along one axis: of the job's whole life, or of the iterations in one window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.history import IterationHistory, Mark
from eroica.model.pattern import WorkerPattern
from eroica.model.series import decode_series, decode_together
from eroica.report.words import milliseconds
from eroica.views.material import Material

#: Stretches that get a step of their own; more are thinned, the slowest of each step stays.
_MOST_POINTS = 900


@dataclass(frozen=True, kw_only=True)
class Course:
    """Iteration times along one axis.

    Attributes:
        x: Seconds since the job's start, or the iteration's number; rising.
        mean_ms: Mean over workers.
        high_ms: Of the slowest worker.
        notes: What each point's hint says.
        is_time: x is time.
        marks: What happened; only with time.
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
    """The job's history; None where none was kept."""
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
    """The marks of the window that the verdict is about, the trigger before it, and all other windows as bands."""
    own = [mark for mark in marks if mark.kind == "baseline" or mark.window_id == window_id or not window_id]
    begin = min((mark.at_s for mark in own if mark.kind in ("window", "blocked")), default=float("inf"))
    triggers = [mark for mark in marks if mark.kind == "trigger" and mark.at_s <= begin]
    others = [mark for mark in marks if mark.kind in ("window", "blocked") and mark not in own]
    chosen = {*map(id, own), *map(id, triggers[-1:]), *map(id, others)}
    return tuple(mark for mark in marks if id(mark) in chosen)[-60:]


def of_window(material: Material) -> Course | None:
    """The iterations that all workers captured; None without patterns."""
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
    """Durations of all captured iterations on the workers that captured all of them.

    Returns:
        Microseconds, float64 [W, I], and the places of these workers among all; None where there are none.
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
    """Places of at most `_MOST_POINTS` values: the highest of each step."""
    if len(values) <= _MOST_POINTS:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), _MOST_POINTS + 1).astype(int)
    return np.array([begin + int(np.argmax(values[begin:end])) for begin, end in pairwise(edges)], dtype=np.intp)
