"""Flame graphs: the culprit's Python time beside its peers' mean. Root on top, widths in milliseconds.

They hold only Python's own critical time: operators and kernels have rows in the heat map.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from markupsafe import Markup

from eroica.model.words import clean
from eroica.views import svg
from eroica.views.material import Material
from eroica.views.svg import Facts, Picture

_WIDTH, _GAP, _ROW, _HEAD, _FOOT = 960.0, 16.0, 18.0, 30.0, 34.0
#: Least width of a frame that is drawn, pixels; and frames on each side.
_LEAST_WIDTH, _MOST_FRAMES = 0.7, 1500
#: Difference from peers, as a share of the whole, at which a frame gets the first, second and third color.
_STEPS = (0.01, 0.08, 0.25)
#: Deeper frames count to the one at this depth; letters of a frame that the page keeps.
_MOST_DEPTH, _LONGEST_NAME = 60, 160
_TITLE = "Python stacks, against peers"


@dataclass
class Frame:
    """One frame below its callers; milliseconds per iteration of the culprits and of their peers."""

    name: str
    own_ms: float = 0.0
    peers_ms: float = 0.0
    below: dict[str, Frame] = field(default_factory=dict)

    @property
    def children(self) -> list[Frame]:
        """Frames that it calls, the longest on either side first."""
        return sorted(self.below.values(), key=lambda one: (-max(one.own_ms, one.peers_ms), one.name))

    @property
    def short(self) -> str:
        """The function without its file."""
        return self.name.split(" (")[0]

    @property
    def height(self) -> int:
        """Levels below it."""
        return max((1 + child.height for child in self.below.values()), default=0)

    def of(self, side: str) -> float:
        """Return its time on one side, "own" or "peers"."""
        return self.own_ms if side == "own" else self.peers_ms

    def leaves(self, callers: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Frame]]:
        """Yield frames that call nothing, with their callers."""
        for child in self.children:
            if child.below:
                yield from child.leaves((*callers, child.short))
            else:
                yield callers, child

    def packed(self) -> list[object]:
        """Return name, both times and frames below, for the script."""
        times = round(self.own_ms, 4), round(self.peers_ms, 4)
        return [clean(self.name, _LONGEST_NAME), *times, [child.packed() for child in self.children]]


def build_tree(stacks: Iterable[tuple[tuple[str, ...], float, float]]) -> Frame | None:
    """Put stacks below one root; None where they hold no time.

    Args:
        stacks: Frames from the outermost to the leaf, milliseconds on the culprits and on their peers.
    """
    root = Frame("all")
    for stack, own_ms, peers_ms in stacks:
        at = root
        at.own_ms += own_ms
        at.peers_ms += peers_ms
        for name in stack[:_MOST_DEPTH]:
            at = at.below.setdefault(name, Frame(name))
            at.own_ms += own_ms
            at.peers_ms += peers_ms
    return root if max(root.own_ms, root.peers_ms) > 0 else None


def draw(material: Material) -> Picture | None:
    """Draw two icicles; None for jobs without windows."""
    first = material.suspect() if material.verdict.verdict != "blocked" else None
    if first is None:
        return None
    culprits, peers = _sides(material, first)
    in_loader = _is_about_loader(material)
    root = build_tree(_stacks(material, culprits, peers, in_loader))
    if root is None:
        return Picture(id="flames", title=_TITLE, missing="No Python was seen on the critical path of these workers.")
    return _picture(material, root, culprits, peers, in_loader)


def _sides(material: Material, first: int) -> tuple[list[int], list[int]]:
    """Return the places of the culprits that share a cause with the first one, and of their peers."""
    cause = next((cause for cause in material.causes if first in cause.workers and cause.scope == "some"), None)
    named = cause.workers if cause is not None else (first,)
    own = [material.places[rank] for rank in named if rank in material.places]
    likeness = material.rows.likeness(material.places[first])
    others = [place for rank, place in material.places.items() if place not in own and rank not in material.culprits]
    best = max((likeness[place] for place in others), default=0.0)
    return own, [place for place in others if likeness[place] >= best - 0.25]


def _is_about_loader(material: Material) -> bool:
    """Return whether the first cause lies in a loader process, which is never critical itself."""
    for cause in material.causes[:1]:
        columns = material.rows.matching(cause.function.name, cause.function.stack)[:1]
        return any(material.rows.keys[column].thread == "loader" for column in columns)
    return False


def _stacks(
    material: Material, culprits: Sequence[int], peers: Sequence[int], in_loader: bool
) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """Yield each Python stack with its mean milliseconds per iteration on culprits and peers."""
    rows = material.rows
    ms_WF = rows.total_ms_WF if in_loader else rows.critical_ms_WF
    for column, key in enumerate(rows.keys):
        if not key.stack or (key.thread == "loader") != in_loader:
            continue
        ms_W = ms_WF[:, column].astype(float)
        own, theirs = float(ms_W[list(culprits)].mean()), float(ms_W[list(peers)].mean()) if peers else 0.0
        if math.isfinite(own + theirs) and own + theirs > 0:
            yield key.stack, own, theirs


def _picture(
    material: Material, root: Frame, culprits: Sequence[int], peers: Sequence[int], in_loader: bool
) -> Picture:
    """Return drawing, table and data."""
    own = f"the mean of {len(culprits)} named workers"
    if len(culprits) == 1:
        own = clean(material.worker_name(int(material.ranks[culprits[0]])), 60)
    names = [own, f"the mean of {len(peers)} peers" if len(peers) != 1 else "its only peer"]
    top_ms = max(root.own_ms, root.peers_ms)
    width = (_WIDTH - _GAP) / 2 if peers else _WIDTH
    height = _HEAD + _ROW * root.height + _FOOT
    sides = []
    for at, side in enumerate(("own", "peers") if peers else ("own",)):
        x = at * (width + _GAP)
        cls = "strong culprit-text" if side == "own" and material.culprits else "strong"
        text = f"{svg.clip(names[at], width * 0.6)}: {svg.time(root.of(side))} an iteration"
        sides += [
            svg.label(x, 16, text, cls=cls),
            *islice(_boxes(root, side, x, (width / top_ms, top_ms if peers else None)), _MOST_FRAMES),
        ]
    legend = svg.tag("g", _legend(), transform=f"translate(0 {svg.number(height - 6)})")
    title = f"Flame graphs of {names[0]} and of {names[1]}"
    what = "time in loader processes, summed over them, idle time included"
    if not in_loader:
        what = "Python's own time on the critical path"
    against = " ▲ takes longer here than on peers, ▼ shorter; both sides have the same scale." if peers else ""
    leaves = sorted(root.leaves(), key=lambda one: -abs(one[1].own_ms - one[1].peers_ms))
    rows = [
        [
            clean(frame.name),
            clean(" › ".join(callers[-3:])),
            svg.time(frame.own_ms),
            svg.time(frame.peers_ms),
            difference(frame),
        ]
        for callers, frame in leaves
    ]
    return Picture(
        id="flames",
        title="Python in loader processes, against peers" if in_loader else _TITLE,
        body=svg.tag("div", svg.svg(_WIDTH, height, *sides, legend, title=title, cls="wide flames"), cls="scroll"),
        reads=f"Callers stand above what they call; the width of a frame is {what}, each iteration.{against}",
        facts=Facts(("function", "called from", "here", "peers", "difference"), rows),
        data={"tree": root.packed(), "top": top_ms, "names": names, "peers": len(peers), "steps": _STEPS},
    )


def _boxes(frame: Frame, side: str, x: float, scale: tuple[float, float | None], depth: int = 0) -> Iterator[Markup]:
    """Yield the frames below one, the widest first.

    `scale`: pixels per millisecond, and the milliseconds of the longer side; None without peers.
    """
    per_ms, top_ms = scale
    for child in frame.children:
        width = per_ms * child.of(side)
        if width >= _LEAST_WIDTH:
            y = _HEAD + _ROW * depth
            against = "there are no peers"
            if top_ms is not None:
                against = f"here {svg.time(child.own_ms)}, peers {svg.time(child.peers_ms)}, {difference(child)}"
            told = svg.hint(f"{child.name}\n{svg.time(child.of(side))} an iteration; {against}")
            color = tone(child, top_ms, side) if top_ms is not None else "same"
            text = _label(child, width - 8, color)
            name = svg.label(x + 4, y + 13, text, cls=f"frame-name on-{color}") if text else None
            yield svg.tag("g", svg.rect(x, y, max(width - 1, 0.6), _ROW - 1, told, cls=f"frame {color}"), name)
            yield from _boxes(child, side, x, scale, depth + 1)
        x += width


def tone(frame: Frame, top_ms: float, side: str) -> str:
    """Return the class of a frame's color: "more-2", "less-1", "same"; on the peers' side no "more"."""
    apart = frame.own_ms - frame.peers_ms
    if side == "peers" and apart > 0:
        return "same"
    strength = sum(abs(apart) >= step * top_ms for step in _STEPS)
    return f"{'more' if apart > 0 else 'less'}-{strength}" if strength else "same"


def difference(frame: Frame) -> str:
    """Return the difference from peers: "▲ 24.6 ms more", "▼ 1.2 ms less", "the same"."""
    apart = frame.own_ms - frame.peers_ms
    if abs(apart) < 5e-3:
        return "the same"
    return f"{'▲' if apart > 0 else '▼'} {svg.time(abs(apart))} {'more' if apart > 0 else 'less'}"


def _label(frame: Frame, width: float, color: str) -> str:
    """Return its name, with the sign of its difference."""
    sign = {"more": "▲ ", "less": "▼ "}.get(color[:4], "")
    text = svg.clip(frame.short, width - svg.text_width(sign, 11), 11, code=True) if width > 18 else ""
    return f"{sign}{text}" if text and ("…" not in text or len(text) >= 7) else ""


def _legend() -> Markup:
    names = (("less-3", "▼ shorter here"), ("same", "like peers"), ("more-3", "▲ longer here"))
    parts, x = [], 0.0
    for cls, name in names:
        parts += [svg.rect(x, -10, 12, 12, cls=f"frame {cls}"), svg.label(x + 18, 0, name, cls="soft")]
        x += 44 + svg.text_width(name)
    return svg.tag("g", *parts, cls="flame-legend")
