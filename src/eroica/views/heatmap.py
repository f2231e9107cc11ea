"""Heat map: critical time of every function on every worker.

Without a script the map is a small image of indexed colors. The script draws the same numbers on a canvas that can be
zoomed. Where several workers share a pixel, the one farthest from its function's median is drawn, so one slow worker of
ten thousand stays visible.

Shapes: W workers, F functions, B columns of the image.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey
from eroica.model.words import clean
from eroica.views import svg
from eroica.views.material import Material
from eroica.views.svg import Facts, Picture

#: Functions that get a row: as many as fit on a screen.
MOST_ROWS = 30
#: Columns of the image; the browser would only average more.
_MOST_COLUMNS = 720
_WIDTH, _LEFT, _TOP, _ROW = 960.0, 236.0, 34.0, 18.0
#: Letters in the name of a row.
_LETTERS = 29
#: Value of a cell whose worker does not run the function.
NO_VALUE = 65_535
_MOST_MARKS = 40
#: Level 0 of the image is transparent (no value); levels 1 to 255 are colors.
_LEVELS = 256
#: Evenly spaced stops from nothing to most. Lightness changes evenly, so the scales read without color and in print.
_LIGHT = ("#f1f2f0", "#cfdfe4", "#9cc3d3", "#5c9fbe", "#2c739f", "#164a75", "#0a2444")
_DARK = ("#1a222c", "#173c56", "#1d5d80", "#3184a6", "#62aec3", "#aad6d8", "#f4fae6")
#: Class of the image on light and on dark paper, and its scale.
_PALETTES = (("only-light", _LIGHT), ("only-dark", _DARK))
_TITLE = "Every function on every worker"

Floats = NDArray[np.float64]


def draw(material: Material) -> Picture | None:
    """Draw up to 30 functions on all workers; None for a job that stood still, or without patterns."""
    if material.verdict.verdict == "blocked" or not material.patterns:
        return None
    columns = _chosen(material)
    if not columns.size:
        return Picture(id="heatmap", title=_TITLE, missing="No function was on the critical path of any worker.")
    return _Heatmap(material, columns).picture()


def _chosen(material: Material) -> NDArray[np.intp]:
    """Choose the functions of findings, then those that differ or cost most."""
    time_WF = material.rows.critical_ms_WF
    own = [int(column) for finding in material.verdict.findings for column in material.functions_of(finding)[:4]]
    weight_F = np.ptp(time_WF, axis=0) + time_WF.mean(axis=0)
    rest = np.argsort(-weight_F, kind="stable").tolist()
    ordered = [column for column in dict.fromkeys([*own, *rest]) if weight_F[column] > 0]
    return np.array(ordered[:MOST_ROWS], dtype=np.intp)


class _Heatmap:
    """One heat map.

    Attributes:
        ms_FW: Critical milliseconds per iteration; NaN where a worker does not run a function.
        middle_F: Median of each function over all workers; workers that do not run it count with 0.
        top_ms: Largest value, at least a microsecond.
    """

    def __init__(self, material: Material, columns: NDArray[np.intp]) -> None:
        self.material = material
        rows = material.rows
        ms_WF = rows.critical_ms_WF[:, columns].astype(np.float64)
        self.ms_FW = np.where(rows.runs_WF[:, columns] & np.isfinite(ms_WF), ms_WF, np.nan).T
        self.workers = int(self.ms_FW.shape[1])
        self.middle_F = np.median(np.nan_to_num(self.ms_FW), axis=1)
        self.top_ms = max(float(np.nanmax(self.ms_FW)), 1e-3)
        self.keys = [rows.keys[column] for column in columns]
        self.names = short_names(self.keys)
        marks = {
            int(column): finding.order
            for finding in reversed(material.verdict.findings)
            for column in material.functions_of(finding)[:4]
        }
        self.orders = [marks.get(int(column), 0) for column in columns]
        self.blamed = {finding.order for finding in material.causes}
        self.culprits = [material.places[rank] for rank in material.culprits if rank in material.places]
        self.hosts = [(host, len(list(same))) for host, same in groupby(p.worker.host for p in material.patterns)]

    def picture(self) -> Picture:
        """Return drawing, table and data."""
        body = svg.tag("div", self._drawing(), cls="scroll")
        return Picture(
            id="heatmap", title=_TITLE, body=body, reads=self._reads(), facts=self._facts(), data=self._data()
        )

    def _reads(self) -> str:
        shared = " Where workers share a pixel, the one farthest from the row's median is drawn."
        culprits = " ◆ marks the workers that the verdict names."
        return (
            "A row is a function, a column a worker in rank order; the more a cell stands out from the page, the more "
            "time of each iteration waits for that function on that worker."
            f"{culprits * bool(self.culprits)}{shared * (self.workers > _MOST_COLUMNS)}"
        )

    # --- the drawing ---

    def _drawing(self) -> Markup:
        height = _TOP + _ROW * len(self.keys)
        cells = levels(self._thinned(), self.top_ms)
        size = {"x": _LEFT, "y": _TOP, "width": _WIDTH - _LEFT, "height": height - _TOP}
        return svg.svg(
            _WIDTH,
            height + 74,
            *(_image(indexed_png(cells, colors), cls, size) for cls, colors in _PALETTES),
            *self._labels(),
            *self._marks(height),
            *self._worker_axis(height),
            _legend(self.top_ms, height + 58),
            title=f"Heat map of {len(self.keys)} functions on {self.workers} workers, critical time per iteration",
            cls="wide heat",
        )

    def _x(self, place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT) * place / self.workers

    def _thinned(self) -> Floats:
        """Return [F, B]: of the workers that share a column the one farthest from the median."""
        if self.workers <= _MOST_COLUMNS:
            return self.ms_FW
        edges = np.linspace(0, self.workers, _MOST_COLUMNS + 1).astype(int)
        far_FW = np.nan_to_num(np.abs(self.ms_FW - self.middle_F[:, None]), nan=-1.0)
        picked = [first + far_FW[:, first:last].argmax(axis=1) for first, last in pairwise(edges.tolist())]
        return np.take_along_axis(self.ms_FW, np.stack(picked, axis=1), axis=1)

    def _labels(self) -> Iterator[Markup]:
        for at, (name, order) in enumerate(zip(self.names, self.orders, strict=True)):
            y, text = _TOP + _ROW * (at + 0.5) + 4, svg.clip(f"({order}) {name}" if order else name, _LEFT - 12, 12)
            yield svg.label(_LEFT - 8, y, text, text_anchor="end", cls=f"row-name {self._standing(order)}".strip())

    def _standing(self, order: int) -> str:
        """Return whether a row belongs to a cause, a symptom or neither."""
        return "" if not order else "cause" if order in self.blamed else "symptom"

    def _marks(self, height: float) -> Iterator[Markup]:
        """Yield a diamond above each culprit's column and, of few workers, an outline around it."""
        width = (_WIDTH - _LEFT) / self.workers
        for at in self.culprits[:_MOST_MARKS]:
            yield svg.path(svg.diamond(self._x(at + 0.5), _TOP - 8, 5), cls="culprit-sign")
            if width >= 3:
                yield svg.rect(self._x(at), _TOP, width, height - _TOP, cls="culprit-outline")
        for at in self.culprits if len(self.culprits) == 1 else ():
            x = min(max(self._x(at + 0.5), _LEFT + 30), _WIDTH - 34)
            text = f"worker {self.material.ranks[at]}"
            yield svg.label(x, _TOP - 18, text, text_anchor="middle", cls="culprit-name")

    def _worker_axis(self, height: float) -> Iterator[Markup]:
        """Yield hosts as a band in two alternating shades, and ranks below."""
        at = 0
        for number, (host, count) in enumerate(self.hosts[:_MOST_COLUMNS]):
            x, width = self._x(at), self._x(at + count) - self._x(at)
            yield svg.rect(x, height + 3, width, 15, svg.hint(host), cls=f"host-{number % 2}")
            text = svg.clip(host, width - 6, 11)
            yield svg.label(x + width / 2, height + 14, text, text_anchor="middle", cls="host-name")
            at += count
        for place in sorted({round(place) for place in svg.ticks(0, self.workers - 1, 8)}):
            text = str(self.material.ranks[place])
            yield svg.label(self._x(place + 0.5), height + 32, text, text_anchor="middle", cls="tick-text")
        yield svg.label(_LEFT - 8, height + 32, "worker", text_anchor="end", cls="axis-title")

    # --- text and data ---

    def _facts(self) -> Facts:
        header = ["function", "median", "highest", "on worker", "lowest", "on worker"]
        header += [f"worker {self.material.ranks[at]}" for at in self.culprits[:3]]
        rows = []
        for name, middle, values_W in zip(self.names, self.middle_F.tolist(), self.ms_FW, strict=True):
            places = int(np.nanargmax(values_W)), int(np.nanargmin(values_W))
            ends = [text for at in places for text in (svg.time(float(values_W[at])), str(self.material.ranks[at]))]
            own = [svg.time(value) if math.isfinite(value) else "–" for value in values_W[self.culprits[:3]].tolist()]
            rows.append([clean(name), svg.time(middle), *ends, *own])
        return Facts(header, rows)

    def _data(self) -> dict[str, object]:
        ranks = self.material.ranks
        follow_each_other = bool(np.array_equal(ranks, np.arange(ranks[0], ranks[0] + len(ranks))))
        highest_F = np.maximum(np.nanmax(self.ms_FW, axis=1), 1e-6)
        quantized = np.round(self.ms_FW / highest_F[:, None] * (NO_VALUE - 1))
        cells = np.nan_to_num(quantized, nan=NO_VALUE).astype("<u2")
        return {
            "workers": self.workers,
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
            "light": _LIGHT,
            "dark": _DARK,
        }


# --- colors ---


def levels(values: Floats, top: float) -> NDArray[np.uint8]:
    """Return levels: 0 for NaN, else 1 to 255 by the square root of the share of `top`."""
    share = np.sqrt(np.clip(values / top, 0.0, 1.0))
    found: NDArray[np.uint8] = np.nan_to_num(1 + np.round(share * (_LEVELS - 2)), nan=0.0).astype(np.uint8)
    return found


def indexed_png(levels_HW: NDArray[np.uint8], stops: tuple[str, ...]) -> bytes:
    """Return a PNG of one byte a pixel in the colors between the stops. levels_HW: uint8 [H, W]."""
    height, width = levels_HW.shape
    filtered = np.zeros((height, width + 1), dtype=np.uint8)
    filtered[:, 1:] = levels_HW
    points = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops], dtype=np.float64)
    at = np.linspace(0, len(stops) - 1, _LEVELS - 1)
    columns = [np.interp(at, np.arange(len(stops)), points[:, channel]) for channel in range(3)]
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": bytes(3) + np.round(np.stack(columns, axis=1)).astype(np.uint8).tobytes(),
        b"tRNS": b"\0",
        b"IDAT": zlib.compress(filtered.tobytes(), 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )


def _image(png: bytes, cls: str, size: dict[str, float]) -> Markup:
    url = Markup("data:image/png;base64," + base64.b64encode(png).decode())
    return svg.tag("image", href=url, preserveAspectRatio="none", cls=f"pixels {cls}", **size)


def _legend(top_ms: float, y: float) -> Markup:
    """Return the scale of colors up to `top_ms`, with its ends above it."""
    size = {"x": _WIDTH - 220.0, "y": y, "width": 220.0, "height": 8.0}
    ramp = np.arange(1, _LEVELS, dtype=np.uint8)[None, :]
    return svg.tag(
        "g",
        *(_image(indexed_png(ramp, colors), cls, size) for cls, colors in _PALETTES),
        svg.label(size["x"], y - 4, "0", text_anchor="start", cls="tick-text"),
        svg.label(_WIDTH, y - 4, svg.time(top_ms), text_anchor="end", cls="tick-text"),
        svg.label(size["x"] - 10, y + 8, "critical time per iteration", text_anchor="end", cls="axis-title"),
    )


# --- names of functions ---

_KERNEL = re.compile(r"\w*kernel\w*")
#: Characters read of a name from the job.
_LONGEST = 2000


def short_names(keys: Sequence[FunctionKey]) -> list[str]:
    """Return a name for each function that tells them apart as far as possible; not clean yet.

    Long names lose their class or their template arguments, and may still be too long for a row.
    """
    names = list(map(_short, keys))
    seen = Counter(names)
    return [f"{name} · {_apart(key)}" if seen[name] > 1 else name for name, key in zip(names, keys, strict=True)]


def _short(key: FunctionKey) -> str:
    """Return a Python function with its file, others by name."""
    if not key.stack:
        return key.name if len(key.name) <= _LETTERS else _of_kernel(key.name[:_LONGEST])
    name, _, where = key.stack[-1][:_LONGEST].partition(" (")
    file = where.removesuffix(")").rsplit("/", 1)[-1]
    whole = f"{name} {file}".strip()
    return whole if len(whole) <= _LETTERS else f"{name.rpartition('.')[2]} {file}".strip()


def _of_kernel(name: str) -> str:
    """Return a C++ kernel without namespaces and template arguments, behind the kernel that it is a template of."""
    head, bracket, inside = name.removeprefix("void ").partition("<")
    if not bracket or "::" not in name:
        return name
    outer = head.rsplit("::", 1)[-1]
    inner = next((found for found in _KERNEL.findall(inside) if found != outer), "")
    return f"{inner} · {outer}" if inner else outer or name


def _apart(key: FunctionKey) -> str:
    """Return what tells functions of one name apart: the group, the caller, or the part of the iteration."""
    if key.group:
        return key.group
    return key.stack[-2].split(" (")[0] if len(key.stack) > 1 else key.phase


def full_name(key: FunctionKey) -> str:
    """Return a function with where it ran: "aten::mm, backward"; of Python the innermost frames."""
    if key.stack:
        return " › ".join(frame.split(" (")[0] for frame in key.stack[-4:-1]) + f" › {key.stack[-1]}"
    where = [f"group {key.group}"] if key.group else [] if key.phase == "other" else [key.phase]
    return ", ".join([key.name, *where])
