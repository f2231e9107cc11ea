"""For each cause, all workers by what its function does on them: share of critical time and use of its resource."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from eroica.model.shares import percent
from eroica.model.verdict import Finding
from eroica.report.words import clean, worker_list
from eroica.views.functions import shown_as
from eroica.views.material import Material
from eroica.views.picture import Facts, Picture, facts
from eroica.views.svg import (
    Scale,
    bottom_axis,
    circle,
    diamond,
    hint,
    join,
    label,
    left_axis,
    line,
    path,
    rect,
    roof,
    shares,
    sign,
    svg,
    tag,
    text_width,
    ticks,
)

_ID, _TITLE = "cloud", "All workers in the function of each cause"
_WIDE, _NARROW = 960.0, 350.0
_TOP, _PLOT, _STRIP, _BOTTOM, _LEFT, _RIGHT = 24.0, 270.0, 110.0, 42.0, 62.0, 20.0
_MOST_PANELS = 4
#: Above so many peers those that lie together become one disc, as large as they are many.
_MOST_DOTS = 400
#: Above so many culprits they are one path: all are drawn, only the hints are left to the table.
_MOST_HINTS, _MOST_NAMES = 400, 4
_MOST_ROWS = 120
#: How much wider bold letters are than others.
_BOLD = 1.08
#: Cells of the grid in which peers are put together, pixels.
_CELL = 9.0
_DOT, _SIGN = 4.2, 7.0


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One cause's cloud.

    Attributes:
        finding: The cause.
        name: The function that is drawn.
        ranks: Global ranks. int [N].
        beta: Share of the window on the critical path. float64 [N].
        mu: Mean use of the resource meanwhile. float64 [N].
        named: The finding names this worker. bool [N].
        resource: Which channel; "" where none was sampled, then there is only one axis.
    """

    finding: Finding
    name: str
    ranks: NDArray[np.int64]
    beta: NDArray[np.float64]
    mu: NDArray[np.float64]
    named: NDArray[np.bool_]
    resource: str


def draw(material: Material) -> Picture | None:
    """A cloud for each cause whose function has a pattern on the workers; None without causes."""
    if not material.causes or not material.patterns:
        return None
    if len(material.patterns) == 1:
        return None
    panels = [panel for finding in material.causes[:_MOST_PANELS] if (panel := _panel(finding, material)) is not None]
    if not panels:
        return Picture(id=_ID, title=_TITLE, missing="The causes name no function that runs on several workers.")
    return Picture(
        id=_ID,
        title=_TITLE if len(panels) > 1 else "All workers in the function of the cause",
        body=join(_shown(panel, material) for panel in panels),
        reads="Each dot is a worker, further right the longer its iteration waits for this function"
        f"{', higher the more the function uses its resource' if any(panel.resource for panel in panels) else ''}. "
        "Diamonds are the workers that the cause names.",
        facts=_facts(panels, material),
    )


def _panel(finding: Finding, material: Material) -> _Panel | None:
    columns = material.functions_of(finding)
    if not len(columns):
        return None
    rows = material.rows
    beta, mu = rows.joined(columns)
    named = np.isin(material.ranks, finding.workers) & (finding.scope == "some")
    key = rows.keys[int(columns[0])]
    sampled = finding.resource.name if finding.resource is not None else rows.resources[int(columns[0])]
    return _Panel(
        finding=finding,
        name=clean(shown_as(finding, key), 100),
        ranks=material.ranks,
        beta=beta,
        mu=mu,
        named=named,
        resource=clean(sampled, 24) if mu.any() else "",
    )


def _shown(panel: _Panel, material: Material) -> Markup:
    finding = panel.finding
    title = _panel_title(finding, panel.name)
    wide, narrow = _draw(panel, _WIDE, material, title), _draw(panel, _NARROW, material, title)
    return tag(
        "div",
        tag("h3", title, cls="panel-title"),
        tag("div", wide, cls="wide-only"),
        tag("div", narrow, cls="narrow"),
        _legend(panel),
        cls="panel",
    )


def _panel_title(finding: Finding, name: str) -> str:
    """Such as "Cause 1: _read_block"."""
    return f"Cause {finding.order}: {name}"


def _draw(panel: _Panel, width: float, material: Material, title: str) -> Markup:
    height = _PLOT if panel.resource else _STRIP
    end = _TOP + height
    x = Scale(
        0.0, roof(float(panel.beta.max(initial=0.01)) * 1.02, 5), _LEFT if panel.resource else _RIGHT, width - _RIGHT
    )
    y = Scale(0.0, roof(float(panel.mu.max(initial=0.01)) * 1.02, 4), end - 6, _TOP + 4)
    xs = np.array([x(value) for value in panel.beta])
    ys = np.array([y(value) for value in panel.mu]) if panel.resource else _stacked(xs, panel.named, _TOP, end)
    across = left_axis(y, x.start, x.end - x.start, shares(ticks(0.0, y.high, 4)), f"μ: mean use of {panel.resource}")
    about = 6 if width > 600 else 4
    return svg(
        width,
        end + _BOTTOM,
        _expected(panel, x, end),
        across if panel.resource else None,
        bottom_axis(x, end, shares(ticks(0.0, x.high, about)), "β: share of the window on the critical path"),
        *_peers(panel, xs, ys, material),
        *_peers_mean(panel, x, end),
        *_names(panel, xs, ys, width, material),
        *_culprits(panel, xs, ys, material),
        title=f"{title}: {_spoken(panel)}",
    )


def _stacked(xs: NDArray[np.float64], named: NDArray[np.bool_], top: float, end: float) -> NDArray[np.float64]:
    """Heights for dots on one axis: those at the same place stand on each other; the height itself means nothing."""
    columns = np.floor(xs / (2 * _DOT)).astype(int)
    order = np.lexsort((xs, named, columns))
    ordered = columns[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    depth = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    room = max(end - top - 24, 1.0)
    step = min(2 * _DOT + 0.5, room / max(int(depth.max(initial=0)), 1))
    heights = np.empty(len(xs))
    heights[order] = end - 10 - depth * step
    return heights


def _expected(panel: _Panel, x: Scale, end: float) -> Markup | None:
    """The range of β that the finding calls expected, where it is one."""
    pattern = panel.finding.pattern
    bounds = pattern.expected.get("beta") if pattern is not None else None
    if bounds is None or bounds[1] >= 1.0 or bounds[1] <= bounds[0]:
        return None
    left, right = x(bounds[0]), x(bounds[1])
    return rect(left, _TOP, max(right - left, 2.0), end - _TOP, cls="expected")


def _peers(panel: _Panel, xs: NDArray[np.float64], ys: NDArray[np.float64], material: Material) -> Iterator[Markup]:
    peers = np.flatnonzero(~panel.named)
    if len(peers) <= _MOST_DOTS:
        for at in peers.tolist():
            yield circle(xs[at], ys[at], _DOT, hint(_told(panel, at, material)), cls="peer")
        return
    cells = np.stack([np.floor(xs[peers] / _CELL), np.floor(ys[peers] / _CELL)]).astype(int)
    _, first, which, counts = np.unique(cells, axis=1, return_index=True, return_inverse=True, return_counts=True)
    which = which.ravel()
    middle_x = np.bincount(which, weights=xs[peers]) / counts
    middle_y = np.bincount(which, weights=ys[peers]) / counts
    largest = float(counts.max())
    for at in np.argsort(-counts, kind="stable").tolist():
        radius = 2.2 + 11.0 * np.sqrt(counts[at] / largest)
        told = _told(panel, int(peers[first[at]]), material)
        text = told if counts[at] == 1 else f"{counts[at]:,} workers, among them {told}"
        yield circle(float(middle_x[at]), float(middle_y[at]), float(radius), hint(text), cls="peer many")


def _peers_mean(panel: _Panel, x: Scale, end: float) -> Iterator[Markup]:
    """Where the finding says its peers are: what it was compared with."""
    pattern = panel.finding.pattern
    beta = pattern.peers.get("beta") if pattern is not None and pattern.peers else None
    if beta is None:
        return
    word = "peers" if panel.finding.scope == "some" else "compared with"
    is_right = beta > 0.6 * x.high
    place = x(beta) + (-6 if is_right else 6)
    yield line(x(beta), _TOP, x(beta), end, cls="peers-mean")
    text = f"{word} {percent(beta)}"
    yield label(place, _TOP + 13, text, text_anchor="end" if is_right else "start", cls="soft halo")


def _culprits(panel: _Panel, xs: NDArray[np.float64], ys: NDArray[np.float64], material: Material) -> Iterator[Markup]:
    culprits = np.flatnonzero(panel.named).tolist()
    if len(culprits) > _MOST_HINTS:
        signs = "".join(diamond(float(xs[at]), float(ys[at]), _SIGN * 0.6) for at in culprits)
        yield path(signs, hint(f"{len(culprits):,} workers that the cause names"), cls="culprit")
        return
    size = _SIGN if len(culprits) <= 60 else _SIGN * 0.75
    for at in culprits:
        yield path(diamond(float(xs[at]), float(ys[at]), size), hint(_told(panel, at, material)), cls="culprit")


def _names(
    panel: _Panel, xs: NDArray[np.float64], ys: NDArray[np.float64], width: float, material: Material
) -> Iterator[Markup]:
    """Names beside the culprits, where they are few; those that would lie on each other move on."""
    culprits = np.flatnonzero(panel.named).tolist()
    if len(culprits) > _MOST_NAMES:
        yield _together(panel, xs[culprits], ys[culprits], width)
        return
    taken: list[tuple[float, float, float]] = []
    for at in sorted(culprits, key=lambda one: ys[one]):
        name = clean(material.worker_name(int(panel.ranks[at])), 40 if width > 600 else 24)
        long, height = text_width(name, 12) * _BOLD, float(ys[at]) + 4
        is_left = xs[at] + long + 14 > width
        x_text = float(xs[at]) + (-11 if is_left else 11)
        begin = x_text - long if is_left else x_text
        while any(abs(height - y) < 14 and begin < right and left < begin + long for left, right, y in taken):
            height += 14 if panel.resource else -14
        taken.append((begin, begin + long, height))
        yield label(x_text, height, name, text_anchor="end" if is_left else "start", cls="culprit-text halo")


def _together(panel: _Panel, xs: NDArray[np.float64], ys: NDArray[np.float64], width: float) -> Markup:
    """All culprits' numbers, above them."""
    name = clean(worker_list(tuple(panel.ranks[panel.named].tolist())), 60 if width > 600 else 30)
    half = text_width(name, 12) / 2
    middle = min(max(float(xs.mean()), half + 4), width - half - 4)
    height = max(float(ys.min()) - 14, _TOP + 12)
    return label(middle, height, name, text_anchor="middle", cls="culprit-text halo")


def _told(panel: _Panel, at: int, material: Material) -> str:
    use = f", {panel.resource} {percent(float(panel.mu[at]))}" if panel.resource else ""
    return f"{clean(material.worker_name(int(panel.ranks[at])), 80)}: β {percent(float(panel.beta[at]), 1)}{use}"


def _legend(panel: _Panel) -> Markup:
    signs = [(path(diamond(8, 8, _SIGN), cls="culprit"), "named by the cause")] if panel.named.any() else []
    many = int((~panel.named).sum()) > _MOST_DOTS
    signs.append(
        (
            circle(8, 8, _DOT + 1, cls="peer"),
            "other workers, larger discs are more of them" if many else "other workers",
        )
    )
    pattern = panel.finding.pattern
    if pattern is not None and pattern.expected.get("beta", (0.0, 1.0))[1] < 1.0:
        signs.append((rect(0, 2, 16, 12, cls="expected"), "expected β"))
    items = [tag("li", sign(16, 16, drawn), text) for drawn, text in signs]
    height = () if panel.resource else (tag("li", "no use of a resource was measured: height only keeps dots apart"),)
    return tag("ul", *items, *height, cls="legend")


def _spoken(panel: _Panel) -> str:
    if not panel.named.any():
        low, high = float(panel.beta.min()), float(panel.beta.max())
        return f"β from {percent(low)} to {percent(high)} on {len(panel.ranks):,} workers"
    named = panel.beta[panel.named]
    others = panel.beta[~panel.named]
    beside = f", the others {percent(float(np.median(others)))} in the middle" if len(others) else ""
    whom = worker_list(tuple(panel.ranks[panel.named].tolist()))
    return f"β {percent(float(named.mean()))} on {whom}{beside}"


def _facts(panels: Sequence[_Panel], material: Material) -> Facts:
    rows: list[tuple[str, ...]] = []
    for panel in panels:
        order = np.lexsort((-panel.beta, ~panel.named))
        for at in order.tolist()[:_MOST_ROWS]:
            use = percent(float(panel.mu[at])) if panel.resource else ""
            who = material.worker_name(int(panel.ranks[at]))
            rows.append((who, panel.name, percent(float(panel.beta[at]), 1), use, "named" if panel.named[at] else ""))
    left_out = sum(max(0, len(panel.ranks) - _MOST_ROWS) for panel in panels)
    made = facts(("worker", "function", "β", "μ", "by the cause"), rows, len(rows))
    return Facts(header=made.header, rows=made.rows, left_out=left_out)
