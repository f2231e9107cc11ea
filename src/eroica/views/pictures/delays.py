"""How long a byte waits on its way from host to host: a matrix of senders and receivers, as communication shows it."""

from __future__ import annotations

from markupsafe import Markup

from eroica.model.communication import DelayMatrix, Place
from eroica.model.shares import percent
from eroica.report.words import clean
from eroica.views import svg
from eroica.views.material import Material
from eroica.views.picture import Facts, Picture, facts

_WIDTH, _LEFT, _TOP, _SIDE = 960.0, 128.0, 40.0, 560.0
_LARGEST_CELL = 64.0
_NUMBERED, _LABELED = 44.0, 11.0
#: Steps of the color scale: classes `delay-1` to `delay-6` of the page's style.
_STEPS = 6


def draw(material: Material) -> Picture | None:
    """The matrix; None where nothing is on record about ways between hosts."""
    told = material.verdict.communication
    if told is None or told.matrix is None or len(told.matrix.hosts) < 2:
        return None
    return picture_of(told.matrix, (told.place, *told.further))


def picture_of(matrix: DelayMatrix, places: tuple[Place, ...] = ()) -> Picture:
    """The picture of a matrix, the cells of the places marked."""
    count = len(matrix.hosts)
    cell = min(_LARGEST_CELL, _SIDE / count)
    top_s = max((delay for row in matrix.delay_s for delay in row if delay is not None), default=0.0) or 1e-9
    cells = (
        _cell(matrix, i, j, cell, top_s, _is_named(matrix, i, j, places)) for i in range(count) for j in range(count)
    )
    drawn = svg.svg(
        _WIDTH,
        _TOP + cell * count + 12,
        _names(matrix, cell),
        *cells,
        title=f"Matrix of delays among {count} hosts",
        cls="wide delays",
    )
    return Picture(
        id="delays",
        title="Ways between hosts",
        body=svg.tag("div", drawn, cls="scroll"),
        reads=(
            "A cell says how long a byte from the host of its row to that of its column waits until it is "
            "acknowledged: the darker, the longer. A dark cell is a slow connection, a dark row a host that sends "
            "slowly, a dark column one that receives slowly."
        ),
        facts=_facts(matrix),
    )


def _is_named(matrix: DelayMatrix, i: int, j: int, places: tuple[Place, ...]) -> bool:
    here = matrix.hosts[i], matrix.hosts[j]
    for place in places:
        if place.kind == "connection" and place.hosts == here:
            return True
        if place.kind in ("sending", "link") and place.hosts == here[:1]:
            return True
        if place.kind in ("receiving", "link") and place.hosts == here[1:]:
            return True
    return False


def _names(matrix: DelayMatrix, cell: float) -> Markup:
    parts = [svg.label(0, _TOP - 7, "from ↓   to →", cls="axis-title")]
    every = max(1, int(_LABELED / cell) + 1) if cell < _LABELED else 1
    widest = max(svg.text_width(clean(host, 12)) for host in matrix.hosts)
    for at, host in enumerate(matrix.hosts):
        if at % every == 0:
            y = _TOP + cell * (at + 0.5) + 4
            parts.append(svg.label(_LEFT - 8, y, svg.clip(host, _LEFT - 10, 12), text_anchor="end", cls="soft"))
        if widest + 6 <= cell:
            x = _LEFT + cell * (at + 0.5)
            parts.append(svg.label(x, _TOP - 7, clean(host, 12), text_anchor="middle", cls="soft"))
    return svg.group(*parts)


def _cell(matrix: DelayMatrix, i: int, j: int, cell: float, top_s: float, named: bool) -> Markup:
    delay = matrix.delay_s[i][j]
    x, y = _LEFT + cell * j, _TOP + cell * i
    here, there = matrix.hosts[i], matrix.hosts[j]
    if delay is None:
        told = svg.hint(here if i == j else f"{here} sends {there} nothing that counts")
        return svg.rect(x, y, cell - 1, cell - 1, told, cls="delay-none")
    usual = matrix.usual_s[i][j] if matrix.usual_s else None
    before = f", usually {svg.time(usual * 1000)}" if usual is not None else ""
    told = svg.hint(f"a byte from {here} to {there} waits {svg.time(delay * 1000)}{before}")
    step = max(1, round((delay / top_s) ** 0.5 * _STEPS))
    box = svg.rect(x, y, cell - 1, cell - 1, told, cls=f"delay-{min(step, _STEPS)}{' delay-named' if named else ''}")
    if cell < _NUMBERED:
        return box
    text = svg.label(
        x + cell / 2, y + cell / 2 + 4, svg.time(delay * 1000), text_anchor="middle",
        cls="on-dark" if step > _STEPS / 2 else "on-light",
    )  # fmt: skip
    return svg.group(box, text)


def _facts(matrix: DelayMatrix) -> Facts:
    rows = [
        (
            -(delay or 0.0),
            [
                here, there, svg.time((delay or 0) * 1000), _usual(matrix, i, j),
                f"{matrix.bytes_per_s[i][j] / 1e6:.2f} MB/s", f"{percent(matrix.busy[i][j])}",
            ],
        )
        for i, here in enumerate(matrix.hosts)
        for j, there in enumerate(matrix.hosts)
        if (delay := matrix.delay_s[i][j]) is not None
    ]  # fmt: skip
    header = ("from", "to", "a byte waits", "usually", "sent", "data under way")
    return facts(header, [row for _, row in sorted(rows, key=lambda one: one[0])])


def _usual(matrix: DelayMatrix, i: int, j: int) -> str:
    usual = matrix.usual_s[i][j] if matrix.usual_s else None
    return "" if usual is None else svg.time(usual * 1000)
