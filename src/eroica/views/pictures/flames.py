"""Flame graphs: where the culprit's Python time goes, beside its peers' mean. Root on top, widths in milliseconds.

Only Python's own critical time is in them: operators and kernels have rows in the heat map.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from markupsafe import Markup

from eroica.report.words import clean
from eroica.views import svg
from eroica.views.flame_tree import Frame, build_tree
from eroica.views.material import Material
from eroica.views.picture import Facts, Picture, facts

_WIDTH, _GAP, _ROW, _HEAD, _FOOT = 960.0, 16.0, 18.0, 30.0, 34.0
#: Frames that are drawn on each side; narrower ones are told in their parent's row of the table.
_LEAST_WIDTH, _MOST_FRAMES = 0.7, 1500
#: Share of the whole from which a difference has a color; beyond the others it is a strong one.
_STEPS = (0.01, 0.08, 0.25)
_TITLE = "Python stacks, against peers"


def draw(material: Material) -> Picture | None:
    """Two icicles; None for jobs without windows."""
    pair = material.culprit_and_peer() if material.verdict.verdict != "blocked" else None
    if pair is None:
        return None
    culprits, peers = _sides(material, pair[0])
    in_loader = _is_about_loader(material)
    root = build_tree(_stacks(material, culprits, peers, in_loader))
    if root is None:
        why = "No Python was seen on the critical path of these workers."
        return Picture(id="flames", title=_TITLE, missing=why)
    return _Flames(material, root, culprits, peers, in_loader).picture()


def _sides(material: Material, first: int) -> tuple[list[int], list[int]]:
    """Places of the culprits that the first cause names with this one, and of their peers."""
    cause = next((cause for cause in material.causes if first in cause.workers and cause.scope == "some"), None)
    named = cause.workers if cause is not None else (first,)
    own = [material.places[rank] for rank in named if rank in material.places]
    likeness = material.rows.likeness(material.places[first])
    others = [place for rank, place in material.places.items() if place not in own and rank not in material.culprits]
    best = max((likeness[place] for place in others), default=0.0)
    return own, [place for place in others if likeness[place] >= best - 0.25]


def _is_about_loader(material: Material) -> bool:
    """Whether the first cause lies in a loader process, which is never critical itself."""
    keys = material.rows.keys
    columns = [int(column) for cause in material.causes[:1] for column in material.functions_of(cause)[:1]]
    return any(keys[column].thread == "loader" for column in columns)


def _stacks(
    material: Material, culprits: Sequence[int], peers: Sequence[int], in_loader: bool
) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """Each Python stack with its milliseconds per iteration on the culprits and on their peers, both means."""
    rows = material.rows
    lengths_W = [max(one.last_iteration - one.first_iteration, 1) for one in material.patterns]
    time_WF = rows.total_s_WF if in_loader else rows.critical_s_WF
    for column, key in enumerate(rows.keys):
        if not key.stack or (key.thread == "loader") != in_loader:
            continue
        ms_W = 1e3 * time_WF[:, column].astype(np.float64) / lengths_W
        own, theirs = float(ms_W[list(culprits)].mean()), float(ms_W[list(peers)].mean()) if peers else 0.0
        if math.isfinite(own + theirs) and own + theirs > 0:
            yield key.stack, own, theirs


class _Flames:
    def __init__(
        self, material: Material, root: Frame, culprits: Sequence[int], peers: Sequence[int], in_loader: bool
    ) -> None:
        self.material, self.root, self.in_loader = material, root, in_loader
        self.culprits, self.peers = [int(material.ranks[at]) for at in culprits], peers
        self.top_ms = max(root.own_ms, root.peers_ms)
        self.width = (_WIDTH - _GAP) / 2 if peers else _WIDTH
        self.depth = root.height

    def picture(self) -> Picture:
        """The whole of it."""
        height = _HEAD + _ROW * self.depth + _FOOT
        sides = [self._side("own", 0.0)]
        if self.peers:
            sides.append(self._side("peers", self.width + _GAP))
        title = f"Flame graphs of {self._own_name()} and of {self._peers_name()}"
        drawn = svg.svg(_WIDTH, height, *sides, svg.move(0, height - 6, _legend()), title=title, cls="wide flames")
        return Picture(
            id="flames",
            title="Python in loader processes, against peers" if self.in_loader else _TITLE,
            body=svg.tag("div", drawn, cls="scroll"),
            reads=self._reads(),
            facts=self._facts(),
            data={
                "tree": self.root.packed(),
                "top": self.top_ms,
                "names": [self._own_name(), self._peers_name()],
                "peers": len(self.peers),
                "steps": _STEPS,
            },
        )

    def _own_name(self) -> str:
        if len(self.culprits) == 1:
            return clean(self.material.worker_name(self.culprits[0]), 60)
        return f"the mean of {len(self.culprits)} named workers"

    def _peers_name(self) -> str:
        return f"the mean of {len(self.peers)} peers" if len(self.peers) != 1 else "its only peer"

    def _reads(self) -> str:
        what = (
            "time in loader processes, summed over them, idle time included"
            if self.in_loader
            else "Python's own time on the critical path"
        )
        sides = " ▲ takes longer here than on peers, ▼ shorter; both sides have the same scale." if self.peers else ""
        return f"Callers stand above what they call; the width of a frame is {what}, each iteration.{sides}"

    def _side(self, side: str, x: float) -> Markup:
        total = self.root.own_ms if side == "own" else self.root.peers_ms
        name = self._own_name() if side == "own" else self._peers_name()
        cls = "strong culprit-text" if side == "own" and self.material.culprits else "strong"
        head = svg.label(x, 16, f"{svg.clip(name, self.width * 0.6)}: {svg.time(total)} an iteration", cls=cls)
        frames = list(self._frames(self.root, side, x, 0))[:_MOST_FRAMES]
        return svg.group(head, *frames)

    def _frames(self, frame: Frame, side: str, x: float, depth: int) -> Iterator[Markup]:
        """A frame and those below it, the widest first."""
        at = x
        for child in frame.children:
            width = self.width * child.of(side) / self.top_ms
            if width >= _LEAST_WIDTH:
                yield self._frame(child, at, width, depth, side)
                yield from self._frames(child, side, at, depth + 1)
            at += width

    def _frame(self, frame: Frame, x: float, width: float, depth: int, side: str) -> Markup:
        y = _HEAD + _ROW * depth
        told = f"{frame.name}\n{svg.time(frame.of(side))} an iteration; {self._against(frame)}"
        color = tone(frame, self.top_ms, side) if self.peers else "same"
        box = svg.rect(x, y, max(width - 1, 0.6), _ROW - 1, svg.hint(told), cls=f"frame {color}")
        text = _label(frame, width - 8, color)
        label = svg.label(x + 4, y + 13, text, cls=f"frame-name on-{color}") if text else None
        return svg.group(box, label)

    def _against(self, frame: Frame) -> str:
        if not self.peers:
            return "there are no peers"
        return f"here {svg.time(frame.own_ms)}, peers {svg.time(frame.peers_ms)}, {difference(frame)}"

    def _facts(self) -> Facts:
        """The innermost functions by how much they differ."""
        leaves = sorted(self.root.leaves(), key=lambda one: -abs(one[1].own_ms - one[1].peers_ms))
        rows = [
            [clean(frame.name), clean(" › ".join(path[-4:-1])), svg.time(own), svg.time(theirs), difference(frame)]
            for path, frame in leaves
            for own, theirs in [(frame.own_ms, frame.peers_ms)]
        ]
        return facts(("function", "called from", "here", "peers", "difference"), rows)


def tone(frame: Frame, top_ms: float, side: str) -> str:
    """Class of a frame's color: "more-2", "less-1", "same"; on the peers' side only what is less on the other one."""
    apart = frame.own_ms - frame.peers_ms
    if side == "peers" and apart > 0:
        return "same"
    strength = sum(abs(apart) >= step * top_ms for step in _STEPS)
    return f"{'more' if apart > 0 else 'less'}-{strength}" if strength else "same"


def difference(frame: Frame) -> str:
    """Against peers: "▲ 24.6 ms more", "▼ 1.2 ms less", "the same"."""
    apart = frame.own_ms - frame.peers_ms
    if abs(apart) < 5e-3:
        return "the same"
    return f"{'▲' if apart > 0 else '▼'} {svg.time(abs(apart))} {'more' if apart > 0 else 'less'}"


def _label(frame: Frame, width: float, color: str) -> str:
    """Its name, with the sign of its difference where it has a color."""
    sign = {"more": "▲ ", "less": "▼ "}.get(color[:4], "")
    text = svg.clip(frame.short, width - svg.text_width(sign, 11), 11, code=True) if width > 18 else ""
    return f"{sign}{text}" if text and ("…" not in text or len(text) >= 7) else ""


def _legend() -> Markup:
    names = (("less-3", "▼ shorter here"), ("same", "like peers"), ("more-3", "▲ longer here"))
    parts, x = [], 0.0
    for cls, name in names:
        parts += [svg.rect(x, -10, 12, 12, cls=f"frame {cls}"), svg.label(x + 18, 0, name, cls="soft")]
        x += 44 + svg.text_width(name)
    return svg.group(*parts, cls="flame-legend")
