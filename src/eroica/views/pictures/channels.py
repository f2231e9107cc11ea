"""Hardware channels of the culprit and of a median peer over the window, each as fine as it was really measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.series import decode_series
from eroica.model.shares import percent
from eroica.model.timeline import ChannelSeries, Timeline
from eroica.views import svg
from eroica.views.material import Material
from eroica.views.picture import Facts, Picture, facts

_WIDTH, _GAP, _LEFT, _HEIGHT, _HEAD, _FOOT = 960.0, 36.0, 44.0, 92.0, 26.0, 40.0
_MOST_CHANNELS, _COLUMNS = 12, 2
#: Bins with a value on hover; more would lie within single pixels.
_MOST_HINTS = 120
_WORDS = {
    "cpu": "training thread on its core",
    "cpu_host": "all cores of the host",
    "run_queue": "training thread ready but without a core",
    "net": "network",
    "gpu_utilization": "GPU busy",
    "gpu_memory_utilization": "GPU memory busy",
    "gpu_power": "GPU power, of its limit",
}

Floats = NDArray[np.float64]


class _Line(NamedTuple):
    """One channel of one worker: seconds after the start of its window, 0-1."""

    at_s: Floats
    mean: Floats
    highest: Floats
    per_s: float


def draw(material: Material) -> Picture | None:
    """One small drawing for each channel; None for jobs without windows or timelines."""
    pair = material.culprit_and_peer() if material.verdict.verdict != "blocked" else None
    if pair is None:
        return None
    lines = {rank: _read(material.timeline(rank)) for rank in pair if rank is not None}
    names = list(dict.fromkeys(name for own in lines.values() for name in own))[:_MOST_CHANNELS]
    if not names:
        why = "No hardware was measured on these workers, or their records had no room for it."
        return Picture(id="channels", title="Hardware over the window", missing=why)
    return _Multiples(material, lines, names).picture()


def _read(timeline: Timeline | None) -> dict[str, _Line]:
    channels = timeline.channels if timeline is not None else ()
    return {channel.name: line for channel in channels if (line := _line(channel)) is not None}


def _line(channel: ChannelSeries) -> _Line | None:
    """A channel's columns; None where they are damaged or say nothing."""
    try:
        at, mean, high = (
            decode_series(data, np.float32).astype(np.float64)
            for data in (channel.at_us, channel.mean, channel.highest)
        )
    except InputError:
        return None
    if not at.size or at.size != mean.size or high.size not in (0, at.size) or not np.isfinite(mean).any():
        return None
    return _Line(at / 1e6, mean, high if high.size else mean, channel.per_s)


class _Multiples:
    def __init__(self, material: Material, lines: dict[int, dict[str, _Line]], names: Sequence[str]) -> None:
        self.material, self.lines, self.names, self.ranks = material, lines, names, list(lines)
        self.end_s = max(float(np.nanmax(line.at_s)) for own in lines.values() for line in own.values())
        self.columns = min(_COLUMNS, len(names))
        self.width = (_WIDTH - _GAP * (self.columns - 1)) / self.columns

    def picture(self) -> Picture:
        """The whole of it."""
        rows = -(-len(self.names) // self.columns)
        height = 24 + rows * (_HEAD + _HEIGHT + _FOOT)
        cells = [self._cell(at, name) for at, name in enumerate(self.names)]
        title = f"{len(self.names)} hardware channels over {self.end_s:.1f} seconds"
        return Picture(
            id="channels",
            title="Hardware over the window",
            body=svg.tag(
                "div", svg.svg(_WIDTH, height, self._legend(), *cells, title=title, cls="wide channel"), cls="scroll"
            ),
            reads=self._reads(),
            facts=self._facts(),
        )

    def _reads(self) -> str:
        return (
            "Use of each channel from 0 to 100 %, in steps that are never finer than what was measured; the shade is "
            "up to the highest value within a step, of the first worker. Both windows begin at 0; their clocks are not "
            "compared."
        )

    def _name(self, rank: int) -> str:
        is_culprit = rank in self.material.culprits
        role = "" if is_culprit else ", a median peer" if rank != self.ranks[0] else ", the slowest"
        return svg.clip(self.material.worker_name(rank) + role, 400, 12)

    def _legend(self) -> Markup:
        parts, x = [], 0.0
        for at, rank in enumerate(self.ranks):
            sign = (
                svg.path(svg.diamond(x + 6, 8, 5), cls="culprit") if not at else svg.circle(x + 6, 8, 4.5, cls="peer")
            )
            name = self._name(rank)
            parts += [sign, svg.label(x + 17, 12, name, cls="strong" if not at else "soft")]
            x += 40 + svg.text_width(name) * 1.06
        return svg.group(*parts)

    def _cell(self, at: int, name: str) -> Markup:
        x = (at % self.columns) * (self.width + _GAP)
        y = 24 + (at // self.columns) * (_HEAD + _HEIGHT + _FOOT)
        own = [(rank, self.lines[rank][name]) for rank in self.ranks if name in self.lines[rank]]
        inside = svg.Scale(0.0, self.end_s, _LEFT, self.width - 2)
        up = svg.Scale(0.0, 1.0, _HEAD + _HEIGHT, _HEAD)
        seconds = [(value, f"{value:g} s" if value else "0") for value in inside.ticks(5)]
        return svg.move(
            x,
            y,
            svg.label(0, 15, svg.clip(_WORDS.get(name, name), self.width * 0.55), cls="strong"),
            svg.label(self.width - 2, 15, _resolution([line for _, line in own]), text_anchor="end", cls="soft"),
            svg.left_axis(up, _LEFT, self.width - _LEFT - 2, svg.shares([0.0, 0.5, 1.0])),
            svg.bottom_axis(inside, _HEAD + _HEIGHT, seconds),
            *(self._worker(rank, line, inside, up) for rank, line in reversed(own)),
            _hints(self.material, own, inside),
        )

    def _worker(self, rank: int, line: _Line, inside: svg.Scale, up: svg.Scale) -> Markup:
        is_first = rank == self.ranks[0]
        xs, ys = _steps(line)
        drawn = svg.path(_path(xs, ys, inside, up), cls="culprit-line" if is_first else "line")
        shade = (
            svg.path(_area(xs, ys, np.repeat(line.highest, 2), inside, up), cls="culprit-area") if is_first else None
        )
        return svg.group(shade, drawn)

    def _facts(self) -> Facts:
        rows = [
            [_WORDS.get(name, name), self.material.worker_name(rank), percent(float(np.nanmean(line.mean))),
             percent(float(np.nanmax(line.highest))), f"{line.per_s:.3g} a second"]
            for name in self.names
            for rank in self.ranks
            if (line := self.lines[rank].get(name)) is not None
        ]  # fmt: skip
        return facts(("channel", "worker", "mean", "highest", "measured"), rows)


def _resolution(lines: Sequence[_Line]) -> str:
    rates = [line.per_s for line in lines if line.per_s > 0]
    if not rates:
        return "resolution unknown"
    low, high = min(rates), max(rates)
    rate = f"{low:.3g}" if high - low < 0.05 * high else f"{low:.3g} to {high:.3g}"
    return f"measured {rate} times a second"


def _steps(line: _Line) -> tuple[Floats, Floats]:
    """Corners of a line that is level for each bin; a gap where nothing was measured."""
    between = (line.at_s[1:] + line.at_s[:-1]) / 2
    half = float(np.median(np.diff(line.at_s))) / 2 if line.at_s.size > 1 else 0.5 / max(line.per_s, 1e-3)
    edges = np.concatenate([[max(line.at_s[0] - half, 0.0)], between, [line.at_s[-1] + half]])
    return np.stack([edges[:-1], edges[1:]], axis=1).ravel(), np.repeat(line.mean, 2)


def _path(xs: Floats, ys: Floats, inside: svg.Scale, up: svg.Scale) -> str:
    return svg.points([inside(x) for x in xs.tolist()], [up(y) if math.isfinite(y) else y for y in ys.tolist()])


def _area(xs: Floats, low: Floats, high: Floats, inside: svg.Scale, up: svg.Scale) -> str:
    """Between two lines; nothing where one of them has a gap."""
    whole = np.isfinite(low) & np.isfinite(high)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], whole, [False]])))
    parts = []
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        there = _path(xs[first:last], high[first:last], inside, up)
        back = _path(xs[first:last][::-1], low[first:last][::-1], inside, up).replace("M", "L", 1)
        parts.append(f"{there}{back}z")
    return "".join(parts)


def _hints(material: Material, own: Sequence[tuple[int, _Line]], inside: svg.Scale) -> Markup | None:
    """Values under the pointer, bin by bin of the first worker."""
    if not own or own[0][1].at_s.size > _MOST_HINTS:
        return None
    xs = [inside(float(x)) for x in _steps(own[0][1])[0]]
    boxes = []
    for at, second in enumerate(own[0][1].at_s.tolist()):
        near = [(rank, float(line.mean[np.abs(line.at_s - second).argmin()])) for rank, line in own]
        told = [f"worker {rank}: {percent(value) if math.isfinite(value) else 'not measured'}" for rank, value in near]
        text = svg.hint(f"{second:.2f} s · {' · '.join(told)}")
        boxes.append(svg.rect(xs[2 * at], _HEAD, xs[2 * at + 1] - xs[2 * at], _HEIGHT, text, cls="bin"))
    return svg.group(*boxes)
