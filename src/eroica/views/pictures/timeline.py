"""Timeline: one iteration of the culprit beside that of a median peer, with what each one's iteration waited for.

The clocks of two hosts say nothing about each other, so both are laid against the end of one collective that both
took part in: nobody leaves it before the last one came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from eroica.model.timeline import Timeline, Track
from eroica.views import svg
from eroica.views.encounter import Encounter, find_encounter
from eroica.views.functions import last_part
from eroica.views.material import Material
from eroica.views.picture import Facts, Picture, facts
from eroica.views.slices import Slices, joined, read_slices

_WIDTH, _LEFT = 960.0, 150.0
_LANE, _BAND, _HEAD = 16.0, 22.0, 26.0
#: Nested slices of one thread that are drawn; deeper ones stand in the exported trace.
_MOST_DEPTH = 4
_MOST_TRACKS = 7
#: Slices of one track; shorter ones would lie within single pixels.
_MOST_SLICES = 700
_LEAST_LETTERS = 8
#: Share of the iteration below which neighbors of one Python function are drawn as one.
_GAP = 0.004
_ORDER = ("training", "autograd", "device", "collective", "background", "loader", "child")


def draw(material: Material) -> Picture | None:
    """Culprit and peer around one collective; None for jobs without windows."""
    if material.verdict.verdict == "blocked" or not material.patterns:
        return None
    pair = material.culprit_and_peer()
    if pair is None:
        return None
    ranks = [rank for rank in pair if rank is not None]
    lines = {rank: found for rank in ranks if (found := material.timeline(rank)) is not None and _is_whole(found)}
    if not lines:
        return Picture(id="timeline", title="One iteration, side by side", missing=_why_not(material, ranks))
    return _Drawing(material, pair[0], list(lines), lines).picture()


def _is_whole(timeline: Timeline) -> bool:
    """Whether it has a length; bytes of a damaged one may decode to anything."""
    return 0 < timeline.duration_us < math.inf


def _why_not(material: Material, ranks: Sequence[int]) -> str:
    damaged = any(material.patterns[material.places[rank]].timeline for rank in ranks)
    return (
        "The timelines of these workers are damaged and cannot be read."
        if damaged
        else "These workers recorded no timeline: their patterns had no room for one, or come from an older Eroica."
    )


@dataclass(frozen=True)
class _Lane:
    """One track as it is drawn.

    Attributes:
        name: Of the thread or stream.
        kind: Which sort of track; "critical" for the path.
        slices: What is drawn, times after the start of the iteration, milliseconds.
        height: Pixels.
    """

    name: str
    kind: str
    slices: Slices
    height: float


class _Drawing:
    def __init__(self, material: Material, culprit: int, ranks: Sequence[int], lines: dict[int, Timeline]) -> None:
        self.material, self.culprit, self.ranks, self.lines = material, culprit, ranks, lines
        patterns = [material.patterns[material.places[rank]] for rank in ranks]
        self.meeting: Encounter = find_encounter(patterns, [lines[rank] for rank in ranks])
        self.lanes = {rank: _lanes(lines[rank]) for rank in ranks}
        self.zero_ms = dict(zip(ranks, self.meeting.end_ms, strict=True))
        starts = [-self.zero_ms[rank] for rank in ranks]
        ends = [lines[rank].duration_us / 1e3 - self.zero_ms[rank] for rank in ranks]
        self.scale = svg.Scale(min(starts), max(*ends, min(starts) + 1e-3), _LEFT, _WIDTH - 4)

    def picture(self) -> Picture:
        """The whole of it."""
        body, height = self._panels()
        title = "Timeline of " + " and ".join(self.material.worker_name(rank) for rank in self.ranks)
        drawn = svg.svg(_WIDTH, height + 44, body, self._axis(height), title=title, cls="wide lanes")
        return Picture(
            id="timeline",
            title="One iteration, side by side",
            body=svg.tag("div", drawn, cls="scroll"),
            reads=self._reads(),
            facts=self._facts(),
            data={"left": _LEFT, "width": _WIDTH, "low": self.scale.low, "high": self.scale.high},
        )

    def _reads(self) -> str:
        iteration = self.lines[self.ranks[0]].iteration + 1
        alone = " Nobody else has a timeline to hold beside it." if len(self.ranks) < 2 else ""
        return (
            f"Captured iteration {iteration}, from left to right; the band on top of each worker is what its iteration "
            f"waited for, hatched where that is other workers; neighboring samples of one Python function are one. "
            f"{self.meeting.says}{alone}"
        )

    def _panels(self) -> tuple[Markup, float]:
        parts, y = [], 8.0
        for rank in self.ranks:
            panel, height = self._panel(rank, y)
            parts.append(panel)
            y += height + 18
        zero = self.scale(0.0)
        if self.meeting.name:
            parts.append(svg.line(zero, 4, zero, y - 10, cls="meeting"))
        return svg.group(_hatch(), *parts), y - 10

    def _panel(self, rank: int, y: float) -> tuple[Markup, float]:
        is_culprit = rank == self.culprit and rank in self.material.culprits
        role = "named by the verdict" if is_culprit else "the slowest" if rank == self.culprit else "a median peer"
        sign = svg.path(svg.diamond(8, y + 8, 6), cls="culprit") if is_culprit else svg.circle(8, y + 8, 5, cls="peer")
        cls = "strong culprit-text" if is_culprit else "strong"
        length = svg.time(self.lines[rank].duration_us / 1e3)
        name = svg.clip(self.material.worker_name(rank), 380, 12)
        head = [sign, svg.label(20, y + 12, f"{name}, {role}: an iteration of {length}", cls=cls)]
        at, drawn = y + _HEAD, []
        for lane in self.lanes[rank]:
            drawn.append(self._lane(lane, rank, at))
            at += lane.height + (10 if lane.kind == "critical" else 5)
        return svg.group(*head, *drawn), at - y

    def _lane(self, lane: _Lane, rank: int, y: float) -> Markup:
        """A track: its ground from the iteration's start to its end, its name, its slices."""
        zero = self.zero_ms[rank]
        begin, end = self.scale(-zero), self.scale(self.lines[rank].duration_us / 1e3 - zero)
        ground = svg.rect(begin, y, end - begin, lane.height, cls="idle")
        text = svg.clip(lane.name, _LEFT - 12, 12)
        name = svg.label(_LEFT - 8, y + min(lane.height, _BAND) / 2 + 4, text, text_anchor="end", cls="lane-name")
        return svg.group(ground, name, *(self._slice(lane, at, zero, y) for at in range(len(lane.slices.start_ms))))

    def _slice(self, lane: _Lane, at: int, zero: float, y: float) -> Markup:
        slices = lane.slices
        start, long = float(slices.start_ms[at]) - zero, float(slices.duration_ms[at])
        x, width = self.scale(start), max(self.scale(start + long) - self.scale(start), 0.4)
        thick = lane.height if lane.kind == "critical" else _LANE - 1
        top = y if lane.kind == "critical" else y + _LANE * float(slices.depth[at])
        name, kind = slices.name(at), slices.kind(at)
        box = svg.rect(
            x, top, width, thick, svg.hint(f"{name}: {svg.time(long)}"), cls=f"slice {kind}" + " thin" * (width < 3),
            data_start=f"{start:.5g}", data_long=f"{long:.5g}", data_name=name,
        )  # fmt: skip
        text = _fitting(name, width - 8)
        label = svg.label(x + 4, top + thick / 2 + 4, text, cls="slice-name") if text else None
        waits = kind == "collective" and lane.kind == "critical"
        cover = svg.rect(x, top, width, thick, fill="url(#waiting)", cls="waits") if waits else None
        return svg.group(box, cover, label, cls="one")

    def _axis(self, y: float) -> Markup:
        title = f"before and after the end of {self.meeting.name}" if self.meeting.name else self.meeting.axis
        texts = [(value, text.replace("-", "−")) for value, text in svg.times(self.scale.ticks(8))]
        axis = svg.bottom_axis(self.scale, y, texts, svg.clip(title, 480, 12))
        return svg.group(svg.group(axis, cls="time-axis"), _legend(sorted(self._kinds), y + 31))

    @property
    def _kinds(self) -> set[str]:
        shown = [lane.slices for lanes in self.lanes.values() for lane in lanes]
        return {slices.kind(at) for slices in shown for at in range(len(slices.start_ms))}

    def _facts(self) -> Facts:
        rows: list[list[str]] = []
        for rank in self.ranks:
            critical = self.lines[rank].critical
            slices = read_slices(critical, _MOST_SLICES) if critical is not None else None
            shares = slices.totals() if slices is not None else {}
            ordered = sorted(shares.items(), key=lambda item: -item[1])[:12]
            rows += [[self.material.worker_name(rank), name, svg.time(ms)] for name, ms in ordered]
        return facts(("worker", "on its critical path", "time in this iteration"), rows)


def _fitting(name: str, width: float) -> str:
    """The name as far as it fits; what is left of it in very narrow slices says nothing."""
    whole, last = (svg.clip(one, width, 11, code=True) for one in (name, last_part(name)))
    text = last if "…" in whole or not whole else whole
    return text if "…" not in text or len(text) >= _LEAST_LETTERS else ""


def _lanes(timeline: Timeline) -> list[_Lane]:
    """The critical path, then threads and streams in order of their sort."""
    lanes, gap_ms = [], _GAP * timeline.duration_us / 1e3
    if timeline.critical is not None and (path := read_slices(timeline.critical, _MOST_SLICES)) is not None:
        lanes.append(_Lane("critical path", "critical", joined(path, gap_ms), _BAND))
    tracks = sorted(timeline.tracks, key=lambda track: _ORDER.index(track.thread))[:_MOST_TRACKS]
    return [*lanes, *(lane for track in tracks if (lane := _track_lane(track, gap_ms)) is not None)]


def _track_lane(track: Track, gap_ms: float) -> _Lane | None:
    slices = read_slices(track, _MOST_SLICES, _MOST_DEPTH)
    if slices is None or not slices.start_ms.size:
        return None
    return _Lane(_lane_name(track), track.thread, joined(slices, gap_ms), _LANE * (1 + float(slices.depth.max())) - 1)


def _lane_name(track: Track) -> str:
    known = {"training": "training thread", "autograd": "autograd"}
    return known.get(track.thread, "") or (f"{track.thread}: {track.name}" if track.name else track.thread)


def _legend(kinds: Sequence[str], y: float) -> Markup:
    """What the colors mean."""
    parts, x = [], 0.0
    for kind in kinds:
        name = {"python": "Python", "gc": "garbage collection"}.get(kind, kind)
        parts += [svg.rect(x, y - 9, 10, 10, cls=kind), svg.label(x + 15, y, name, cls="soft")]
        x += 28 + svg.text_width(name)
    return svg.group(*parts)


def _hatch() -> Markup:
    """Stripes over what is waiting: told apart without color."""
    stripe = svg.path("M0 6L6 0M-1.5 1.5L1.5 -1.5M4.5 7.5L7.5 4.5", cls="stripe")
    return svg.tag("defs", svg.tag("pattern", stripe, id="waiting", width=6, height=6, patternUnits="userSpaceOnUse"))
