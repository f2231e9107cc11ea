"""Iteration times over time as SVG, with moves marked."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 900, 320, 60, 46, 40
_COLORS = ("#4269d0", "#efb118", "#3ca951", "#a463f2", "#ff725c", "#6cc5b0", "#97bbf5", "#9c6b4e")


def draw(lines_by_rank: Sequence[Sequence[dict[str, Any]]], events: Sequence[tuple[float, str]]) -> str:
    """One line a rank: seconds since its last iteration ended, at the time when this one ended.

    Args:
        lines_by_rank: Records with "at" (seconds) and "took_s".
        events: When (seconds), and what.
    """
    points = [[(one["at"], one["took_s"]) for one in lines[1:]] for lines in lines_by_rank]
    begin: float = min(at for line in points for at, _ in line)
    span: float = max(at for line in points for at, _ in line) - begin
    most: float = 1.1 * max(took for line in points for _, took in line)

    def x(at: float) -> float:
        return _LEFT + (at - begin) / span * (_WIDTH - _LEFT - 20)

    def y(took: float) -> float:
        return _HEIGHT - _BOTTOM - took / most * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">Seconds between iterations, by rank</text>',
    ]
    for tick in range(5):
        value = most * tick / 4
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for tick in range(7):
        where = f'x="{x(begin + span * tick / 6):.1f}" y="{_HEIGHT - 14}"'
        parts.append(f'<text {where} text-anchor="middle">{span * tick / 6:.0f} s</text>')
    for rank, line in enumerate(points):
        path = " ".join(f"{x(at):.1f},{y(took):.1f}" for at, took in line)
        color = _COLORS[rank % len(_COLORS)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.2"/>')
        parts.append(f'<text x="{_WIDTH - 260 + 60 * rank}" y="18" fill="{color}">rank {rank}</text>')
    for place, (at, what) in enumerate(events):
        parts.append(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{_TOP - 10}" y2="{_HEIGHT - _BOTTOM}" stroke="black" '
            'stroke-dasharray="4 3"/>'
        )
        parts.append(f'<text x="{x(at) + 4:.1f}" y="{_TOP - 2 + 14 * (place % 2)}">{escape(what)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
