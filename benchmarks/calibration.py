"""The reliability diagram: of verdicts with about the same confidence, how many are right."""

from collections.abc import Iterator, Sequence
from html import escape

from accuracy import Bin

SIDE, LEFT, TOP, RIGHT, BOTTOM = 320, 52, 16, 12, 44
#: Least radius of a point, and how it grows with the verdicts behind it.
RADIUS, PER_VERDICT = 3.0, 0.12


def diagram(bins: Sequence[Bin]) -> str:
    """An SVG: stated confidence to the right, the share that is right upwards, with intervals of 95 %."""
    wide, high = LEFT + SIDE + RIGHT, TOP + SIDE + BOTTOM
    label = f"Reliability diagram of {sum(one.right.total for one in bins)} verdicts"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'role="img" aria-label="{escape(label)}" font-family="sans-serif" font-size="11" fill="#222">'
    )
    ground = f'<rect width="{wide}" height="{high}" fill="#fff"/>'
    return "\n".join((head, ground, *_frame(), *(mark for one in bins for mark in _point(one)), "</svg>", ""))


def _frame() -> Iterator[str]:
    for tenth in range(0, 11, 2):
        share = tenth / 10
        yield _line(_x(share), _y(0), _x(share), _y(1), "#ddd")
        yield _line(_x(0), _y(share), _x(1), _y(share), "#ddd")
        yield f'<text x="{_x(share):.1f}" y="{_y(0) + 15:.1f}" text-anchor="middle">{share:.1f}</text>'
        yield f'<text x="{_x(0) - 6:.1f}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.1f}</text>'
    yield _line(_x(0), _y(0), _x(1), _y(1), "#888", ' stroke-dasharray="4 3"')
    yield f'<text x="{_x(0.5):.1f}" y="{_y(0) + 34:.1f}" text-anchor="middle">stated confidence</text>'
    middle = _y(0.5)
    yield f'<text x="14" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 14 {middle:.1f})">right</text>'


def _point(one: Bin) -> Iterator[str]:
    low, high = one.right.interval
    at, value = _x(one.mean), one.right.value
    radius = RADIUS + PER_VERDICT * one.right.total**0.5 * 4
    told = f"stated {one.mean:.2f}: {one.right.good} of {one.right.total} right"
    yield _line(at, _y(low), at, _y(high), "#1f6feb", ' stroke-width="2"')
    yield f'<circle cx="{at:.1f}" cy="{_y(value):.1f}" r="{radius:.1f}" fill="#1f6feb"><title>{told}</title></circle>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>'


def _x(share: float) -> float:
    return LEFT + SIDE * share


def _y(share: float) -> float:
    return TOP + SIDE * (1 - share)
