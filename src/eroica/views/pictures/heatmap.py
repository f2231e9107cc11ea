"""Heat map: critical time of every function on every worker.

The drawing that is there without a script is a small image of indexed colors; the script draws the same numbers on a
canvas, where one can look closer. Where several workers share a pixel, the one farthest from its function's median is
drawn: neither a slow worker nor one that waits for nobody gets lost among ten thousand.

Shapes: W workers, F functions, B columns of the image.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from eroica.model.verdict import NO_FUNCTION
from eroica.report.words import clean
from eroica.views import svg
from eroica.views.colormap import DARK, LEVELS, LIGHT, PALETTES, image, indexed_png, legend, levels
from eroica.views.functions import full_name, short_names, shown_as
from eroica.views.material import Material
from eroica.views.picture import Facts, Picture, facts

#: Functions that get a row: as many as fit on a screen.
MOST_ROWS = 30
#: Columns of the image without a script; more than pixels of a page would only be averaged by the browser.
_MOST_COLUMNS = 720
#: Workers up to which each column is separated and each cell carries its number.
_SEPARATED, _NUMBERED = 96, 12
_WIDTH, _LEFT, _TOP, _ROW = 960.0, 236.0, 34.0, 18.0
#: Letters that the name of a row has room for, beside the number of its finding.
_LETTERS = 29
#: Value of a cell whose worker does not run the function.
NO_VALUE = 65_535
_MOST_MARKS = 40
#: Causes that the sentence above the map explains.
_MOST_TOLD = 3

Floats = NDArray[np.float64]


def draw(material: Material) -> Picture | None:
    """Critical time per iteration of up to 30 functions on all workers; None for a job that stood still."""
    if material.verdict.verdict == "blocked":
        return None
    if not material.patterns:
        return _without("There are no patterns of workers to draw it from.")
    columns = _chosen(material)
    if not columns.size:
        return _without("No function was on the critical path of any worker.")
    return _Heatmap(material, columns).picture()


def _without(why: str) -> Picture:
    return Picture(id="heatmap", title="Every function on every worker", missing=why)


def _chosen(material: Material) -> NDArray[np.intp]:
    """Functions in order: those of findings, then those that differ or cost most."""
    time_WF = material.rows.critical_s_WF
    own = [int(column) for finding in material.verdict.findings for column in material.functions_of(finding)[:4]]
    weight_F = np.ptp(time_WF, axis=0) + time_WF.mean(axis=0)
    rest = np.argsort(-weight_F, kind="stable").tolist()
    ordered = [column for column in dict.fromkeys([*own, *rest]) if weight_F[column] > 0]
    return np.array(ordered[:MOST_ROWS], dtype=np.intp)


class _Heatmap:
    """One heat map: its numbers, then its drawing.

    Attributes:
        ms_FW: Critical milliseconds per iteration; NaN where a worker does not run a function.
        middle_F: Median of each function over all workers, those that do not run it with 0.
        top_ms: Largest of them, at least a microsecond.
    """

    def __init__(self, material: Material, columns: NDArray[np.intp]) -> None:
        self.material = material
        rows = material.rows
        lengths_W = [max(one.last_iteration - one.first_iteration, 1) for one in material.patterns]
        per_iteration_WF = 1e3 * rows.critical_s_WF[:, columns] / np.array(lengths_W, dtype=np.float64)[:, None]
        is_told_WF = rows.runs_WF[:, columns] & np.isfinite(per_iteration_WF)
        self.ms_FW = np.where(is_told_WF, per_iteration_WF, np.nan).T
        self.middle_F = np.median(np.nan_to_num(self.ms_FW), axis=1)
        self.top_ms = max(float(np.nanmax(self.ms_FW)), 1e-3)
        self.keys = [rows.keys[column] for column in columns]
        self.names = short_names(self.keys, _LETTERS)
        self.marks = {
            int(column): finding.order
            for finding in reversed(material.verdict.findings)
            for column in material.functions_of(finding)[:4]
        }
        self.orders = [self.marks.get(int(column), 0) for column in columns]
        self.blamed = {finding.order for finding in material.causes}
        self.culprits = [material.places[rank] for rank in material.culprits if rank in material.places]
        self.hosts = [(host, len(list(same))) for host, same in groupby(p.worker.host for p in material.patterns)]

    def picture(self) -> Picture:
        """The whole of it."""
        return Picture(
            id="heatmap",
            title="Every function on every worker",
            body=svg.tag("div", self._drawing(), cls="scroll"),
            reads=self._reads(),
            facts=self._facts(),
            data=self._data(),
        )

    @property
    def _workers(self) -> int:
        return int(self.ms_FW.shape[1])

    def _reads(self) -> str:
        shared = (
            " Where workers share a pixel, the one farthest from the row's median is drawn."
            if (self._workers > _MOST_COLUMNS)
            else ""
        )
        culprits = " ◆ marks the workers that the verdict names." if self.culprits else ""
        return (
            "A row is a function, a column a worker in rank order; the more a cell stands out from the page, the more "
            f"time of each iteration waits for that function on that worker.{culprits}{self._elsewhere()}{shared}"
        )

    def _elsewhere(self) -> str:
        """Causes whose function is not the one of their row, or that have no row."""
        told: list[str] = []
        for cause in self.material.causes:
            if cause.function.name == NO_FUNCTION or len(told) >= _MOST_TOLD:
                continue
            row = self.orders.index(cause.order) if cause.order in self.orders else None
            name = cause.function.name if row is None else shown_as(cause, self.keys[row])
            if row is None:
                told.append(f" Cause {cause.order}, {clean(name, 80)}, has no row: no iteration waits for it directly.")
            elif name != cause.function.name:
                told.append(f" Row ({cause.order}) is where cause {cause.order} shows: {clean(name, 120)}.")
        return "".join(told)

    # --- the drawing ---

    def _drawing(self) -> Markup:
        height = _TOP + _ROW * len(self.keys)
        return svg.svg(
            _WIDTH,
            height + 74,
            self._images(),
            self._separators(height),
            self._labels(),
            self._numbers(),
            self._culprit_marks(height),
            self._worker_axis(height),
            legend(self.top_ms, _WIDTH, height + 58),
            title=f"Heat map of {len(self.keys)} functions on {self._workers} workers, critical time per iteration",
            cls="wide heat",
        )

    def _x(self, place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT) * place / self._workers

    def _images(self) -> Markup:
        cells = levels(self._thinned(), self.top_ms)
        size = {"x": _LEFT, "y": _TOP, "width": _WIDTH - _LEFT, "height": _ROW * len(self.keys)}
        return svg.join(image(indexed_png(cells, colors), cls, size) for cls, colors in PALETTES)

    def _thinned(self) -> Floats:
        """[F, B]: of the workers that share a column the one farthest from the median."""
        if self._workers <= _MOST_COLUMNS:
            return self.ms_FW
        edges = np.linspace(0, self._workers, _MOST_COLUMNS + 1).astype(int)
        far_FW = np.nan_to_num(np.abs(self.ms_FW - self.middle_F[:, None]), nan=-1.0)
        picked = [first + far_FW[:, first:last].argmax(axis=1) for first, last in pairwise(edges.tolist())]
        return np.take_along_axis(self.ms_FW, np.stack(picked, axis=1), axis=1)

    def _separators(self, height: float) -> Markup:
        rows = [svg.line(_LEFT, _TOP + _ROW * at, _WIDTH, _TOP + _ROW * at, cls="gap") for at in range(len(self.keys))]
        many = self._workers > _SEPARATED
        lines = (
            []
            if many
            else [svg.line(self._x(at), _TOP, self._x(at), height, cls="gap") for at in range(1, self._workers)]
        )
        return svg.group(*rows, *lines)

    def _labels(self) -> Markup:
        return svg.join(
            svg.label(
                _LEFT - 8,
                _TOP + _ROW * (at + 0.5) + 4,
                svg.clip(_marked(name, order), _LEFT - 12, 12),
                text_anchor="end",
                cls=f"row-name {self._standing(order)}".strip(),
            )
            for at, (name, order) in enumerate(zip(self.names, self.orders, strict=True))
        )

    def _standing(self, order: int) -> str:
        """Whether a row belongs to a cause, a symptom or neither."""
        return "" if not order else "cause" if order in self.blamed else "symptom"

    def _numbers(self) -> Markup | None:
        """In cells that have room, their values; the color is not the only sign."""
        if self._workers > _NUMBERED:
            return None
        level_FW = levels(self.ms_FW, self.top_ms)
        return svg.join(
            svg.label(
                self._x(worker + 0.5),
                _TOP + _ROW * (row + 0.5) + 4,
                svg.time(float(value)),
                text_anchor="middle",
                cls="cell-far" if level_FW[row, worker] > LEVELS * 0.5 else "cell-near",
            )
            for (row, worker), value in np.ndenumerate(self.ms_FW)
            if value > 0
        )

    def _culprit_marks(self, height: float) -> Markup:
        """A diamond above and an outline around the columns of the workers that the verdict names."""
        width = (_WIDTH - _LEFT) / self._workers
        shown = self.culprits[:_MOST_MARKS]
        outlines = [svg.rect(self._x(at), _TOP, width, height - _TOP, cls="culprit-outline") for at in shown]
        signs = [svg.path(svg.diamond(self._x(at + 0.5), _TOP - 8, 5), cls="culprit-sign") for at in shown]
        return svg.group(*(outlines if width >= 3 else []), *signs, self._culprit_names(shown))

    def _culprit_names(self, shown: Sequence[int]) -> Markup | None:
        if not shown or len(shown) > 3:
            return None
        texts, last = [], -1e9
        for at in sorted(shown):
            text = f"worker {self.material.ranks[at]}"
            x = min(max(self._x(at + 0.5), _LEFT + 30), _WIDTH - 34)
            if x - last > svg.text_width(text):
                texts.append(svg.label(x, _TOP - 18, text, text_anchor="middle", cls="culprit-name"))
                last = x
        return svg.join(texts)

    def _worker_axis(self, height: float) -> Markup:
        """Hosts as a band in two alternating shades, and ranks below."""
        band, at = [], 0
        for number, (host, count) in enumerate(self.hosts[:2000] if any(host for host, _ in self.hosts) else ()):
            x, width = self._x(at), self._x(at + count) - self._x(at)
            text = svg.clip(host, width - 6, 11)
            box = svg.rect(x, height + 3, width, 15, svg.hint(host), cls=f"host-{number % 2}")
            name = svg.label(x + width / 2, height + 14, text, text_anchor="middle", cls="host-name") if text else None
            band.append(svg.group(box, name))
            at += count
        places = svg.ticks(0, self._workers - 1, 8) if self._workers > 1 else [0.0]
        whole = sorted({round(place) for place in places})
        ranks = [
            svg.label(self._x(place + 0.5), height + 32, str(self.material.ranks[place]), text_anchor="middle",
                      cls="tick-text")
            for place in whole
        ]  # fmt: skip
        title = svg.label(_LEFT - 8, height + 32, "worker", text_anchor="end", cls="axis-title")
        return svg.group(*band, *ranks, title)

    # --- text and data ---

    def _facts(self) -> Facts:
        header = ["function", "median", "highest", "on worker", "lowest", "on worker"]
        named = [f"worker {self.material.ranks[at]}" for at in self.culprits[:3]]
        rows = [self._fact(row) for row in range(len(self.keys))]
        return facts([*header, *named], rows)

    def _fact(self, row: int) -> list[str]:
        values_W = self.ms_FW[row]
        high, low = int(np.nanargmax(values_W)), int(np.nanargmin(values_W))
        ends = [(svg.time(float(values_W[at])), str(self.material.ranks[at])) for at in (high, low)]
        own = [_time(float(values_W[at])) for at in self.culprits[:3]]
        return [clean(self.names[row]), _time(float(self.middle_F[row])), *ends[0], *ends[1], *own]

    def _data(self) -> dict[str, object]:
        ranks = self.material.ranks
        follow_each_other = bool(np.array_equal(ranks, np.arange(ranks[0], ranks[0] + len(ranks))))
        highest_F = np.maximum(np.nanmax(self.ms_FW, axis=1), 1e-6)
        quantized = np.round(self.ms_FW / highest_F[:, None] * (NO_VALUE - 1))
        cells = np.nan_to_num(quantized, nan=NO_VALUE).astype("<u2")
        return {
            "workers": self._workers,
            "first": int(ranks[0]),
            "ranks": None if follow_each_other else ranks.tolist(),
            "hosts": [[clean(host, 80), count] for host, count in self.hosts],
            "names": [clean(name, 80) for name in self.names],
            "full": [clean(full_name(key), 300) for key in self.keys],
            "orders": self.orders,
            "standing": [self._standing(order) for order in self.orders],
            "culprits": self.culprits,
            "middle": [round(float(value), 6) for value in self.middle_F],
            "highest": [round(float(value), 6) for value in highest_F],
            "top": self.top_ms,
            "cells": base64.b64encode(cells.tobytes()).decode(),
            "light": LIGHT,
            "dark": DARK,
        }


def _time(value: float) -> str:
    return svg.time(value) if math.isfinite(value) else "–"


def _marked(name: str, order: int) -> str:
    """The number of the finding that a function belongs to stands before its name."""
    return f"({order}) {name}" if order else name
