"""Ranks on a time axis, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from prismllm.graph import Graph
from prismllm.replay import Iteration
from prismllm.views.path import Piece

_COLORS = {"own work": "#4c78a8", "collective": "#f2a541", "message": "#b07aa1", "critical": "#d62728"}
_WIDTH, _ROW, _LEFT, _TOP = 1200, 18, 90, 34
_THINNEST = 0.3


class Bar(NamedTuple):
    """A stretch of a rank's time.

    Attributes:
        kind: "own work", "collective" or "message".
        name: Operation and place.
        begin_s: Seconds since the begin of the replay.
        end_s: Likewise.
    """

    rank: int
    kind: str
    name: str
    begin_s: float
    end_s: float


def bars(graph: Graph, iteration: Iteration, ranks: Sequence[int]) -> list[Bar]:
    """Return the bars of these ranks in order of rank and time, without those that never end."""
    wanted = set(ranks)
    found: list[Bar] = []
    for track in iteration.tracks:
        step = graph.job.classes[track.block.rank_class].step
        for row, rank in enumerate(track.block.ranks.tolist()):
            if rank not in wanted:
                continue
            now = float(track.begin_s[row])
            for at in range(len(step.events)):
                call = step.call_at(at)
                reached, left = float(track.at_s[at, row]), float(track.left_s[at, row])
                found.append(Bar(rank, "own work", f"before {call.op} at {call.site}", now, reached))
                found.append(Bar(rank, "message" if call.is_pairwise else "collective", f"{call.op} at {call.site}",
                                 reached, left))  # fmt: skip
                now = left
            found.append(Bar(rank, "own work", "to the end of the iteration", now, float(track.end_s[row])))
    kept = (one for one in found if one.begin_s < one.end_s < float("inf"))
    return sorted(kept, key=lambda one: (one.rank, one.begin_s))


def draw_svg(found: Sequence[Bar], path: Sequence[Piece], title: str) -> str:
    """A picture: a row for each rank, the critical path outlined."""
    ranks = list(dict.fromkeys(bar.rank for bar in found))
    begin = min((bar.begin_s for bar in found), default=0.0)
    length = max((bar.end_s for bar in found), default=1.0) - begin or 1.0
    height = _TOP + _ROW * len(ranks) + 30

    def x(when_s: float) -> float:
        return _LEFT + (when_s - begin) / length * (_WIDTH - _LEFT - 10)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><title>{escape(title)}</title><text x="8" y="16" font-size="13">{escape(title)}</text>'
    ]
    row_of = {rank: _TOP + _ROW * at for at, rank in enumerate(ranks)}
    lines += [f'<text x="8" y="{y + 12}">rank {rank}</text>' for rank, y in row_of.items()]
    for bar in found:
        width = x(bar.end_s) - x(bar.begin_s)
        if width >= _THINNEST:
            lines.append(
                f'<rect x="{x(bar.begin_s):.1f}" y="{row_of[bar.rank]}" width="{width:.1f}" height="{_ROW - 4}" '
                f'fill="{_COLORS[bar.kind]}"><title>{escape(bar.name)}: {1e3 * (bar.end_s - bar.begin_s):.2f} ms'
                "</title></rect>"
            )
    for piece in path:
        if piece.rank in row_of and piece.what == "own work":
            lines.append(
                f'<rect x="{x(piece.begin_s):.1f}" y="{row_of[piece.rank]}" height="{_ROW - 4}" fill="none" '
                f'width="{max(_THINNEST, x(piece.begin_s + piece.seconds) - x(piece.begin_s)):.1f}" '
                f'stroke="{_COLORS["critical"]}"/>'
            )
    legend = " · ".join((f"{1e3 * length:.1f} ms", "blue own work", "orange collectives", "violet messages",
                         "red outline critical path"))  # fmt: skip
    lines.append(f'<text x="{_LEFT}" y="{height - 8}">{legend}</text></svg>')
    return "\n".join(lines)
