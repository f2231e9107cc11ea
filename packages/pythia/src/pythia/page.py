"""The page: runs as bars, replicas with KV use, predicted against actual load; before and after in one picture."""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
import networkx as nx
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from pythia.gateway import Gateway
from pythia.profile import Profile

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")
WIDTH, ROW = 1100.0, 9.0
#: Runs that are drawn at most; the first ones.
MOST_RUNS = 60


@dataclass(frozen=True)
class Bar:
    """One request."""

    run: str
    role: str
    replica: str
    arrived: float
    first: float
    ended: float


@dataclass(frozen=True)
class View:
    """One picture: the requests, and the loads as (time, requests, share of the KV cache, expected requests)."""

    title: str
    bars: Sequence[Bar]
    loads: Sequence[tuple[float, float, float, float]] = ()


def render(
    views: Sequence[View], summary: str, table: Sequence[Sequence[str]] = (), replicas: Sequence[dict[str, Any]] = (),
    refresh: int = 0,
) -> str:  # fmt: skip
    """Return the page. All views share one axis of time, so that before and after can be compared.

    Args:
        views: Pictures, one below the other.
        summary: Text above them.
        table: Rows of cells, the first one with the headings.
        replicas: What `Gateway.snapshot` says of each.
        refresh: Seconds after which a browser loads the page again; 0 for never.
    """
    bars = [bar for view in views for bar in view.bars]
    roles = sorted({bar.role for bar in bars})
    colours = {role: COLOURS[i % len(COLOURS)] for i, role in enumerate(roles)}
    start = min((bar.arrived for bar in bars), default=0.0)
    span = max((bar.ended for bar in bars), default=start + 1.0) - start or 1.0
    drawn = [_draw(view, colours, start, span) for view in views]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    source = (resources.files("pythia") / "data" / "page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        views=drawn, key=colours.items(), summary=summary, table=table, replicas=replicas, refresh=refresh
    )


def _draw(view: View, colours: Mapping[str, str], start: float, span: float) -> dict[str, Any]:
    runs: dict[str, list[Bar]] = {}
    for bar in sorted(view.bars, key=lambda b: b.arrived):
        runs.setdefault(bar.run, []).append(bar)
    shown = list(runs.values())[:MOST_RUNS]
    bars = []
    for row, requests in enumerate(shown):
        lanes: list[float] = []
        placed = []
        for bar in requests:
            lane = next((i for i, free in enumerate(lanes) if free <= bar.arrived), len(lanes))
            lanes[lane : lane + 1] = [bar.ended]
            placed.append((bar, lane))
        height = (ROW - 2) / max(len(lanes), 1)
        for bar, lane in placed:
            times = f"{bar.first - bar.arrived:.2f} s to the first token, {bar.ended - bar.arrived:.2f} s"
            title = f"{bar.run} {bar.role} on {bar.replica}: {times}"
            for a, b, fill in ((bar.arrived, bar.first, "#9995"), (bar.first, bar.ended, colours[bar.role])):
                x, width = (a - start) / span * WIDTH, (b - a) / span * WIDTH
                bars.append({"x": round(x, 2), "y": round(row * ROW + lane * height, 2), "w": round(max(width, 0.4), 2),
                             "h": round(height, 2), "fill": fill, "title": title})  # fmt: skip
    ticks = [{"x": round(i / 10 * WIDTH), "label": f"{start + span * i / 10:.0f}"} for i in range(10)]
    charts = [_chart("requests in flight (line), expected (dashed)", view.loads, (1, 3), start, span),
              _chart("KV cache reserved or used", view.loads, (2,), start, span)] if view.loads else []  # fmt: skip
    return {"title": view.title, "bars": bars, "ticks": ticks, "height": len(shown) * ROW + 16, "charts": charts}


def _chart(
    title: str, loads: Sequence[Sequence[float]], columns: Sequence[int], start: float, span: float
) -> dict[str, Any]:
    inside = [row for row in loads if 0 <= row[0] - start <= span]
    top = max((row[c] for row in inside for c in columns), default=0.0) or 1.0
    lines = []
    for i, column in enumerate(columns):
        points = " ".join(f"{(r[0] - start) / span * WIDTH:.1f},{105 - r[column] / top * 88:.1f}" for r in inside)
        lines.append({"points": points, "colour": COLOURS[i * 2], "dashed": bool(i)})
    return {"title": title, "lines": lines, "top": f"{top:.2f}" if top < 10 else f"{top:.0f}"}


def live(gateway: Gateway) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of the running gateway's page."""

    async def page(request: Request) -> Response:
        state = gateway.snapshot()
        bars = [Bar(**step) for step in state["steps"][-400:]]
        policy = ", ".join(f"{name} {value}" for name, value in state["policy"].items())
        dry = " (dry run: nothing of it is done)" if state["dry_run"] else ""
        bound = f"A bound fails with at most {state['alpha']:.4f}, so that ε is {state['epsilon']}; "
        needs = f"it needs {state['needed_runs_for_bound']} answers of a role, below that max_tokens counts."
        summary = f"Policy: {policy}{dry}. {state['waiting']} requests wait. {bound}{needs}"
        views = [View("Latest requests", bars, state["loads"])]
        return HTMLResponse(render(views, summary, replicas=state["replicas"], refresh=5))

    return page


def automaton_svg(profile: Profile) -> str:
    """Return a drawing of an automaton: roles in order, steps with their probabilities."""
    edges = {step: count for step, count in profile.automaton.role_edges().items() if count > 0}
    leaving: dict[str, float] = {}
    for (role, _), count in edges.items():
        leaving[role] = leaving.get(role, 0.0) + count
    graph: nx.DiGraph[str] = nx.DiGraph()
    for (a, b), count in edges.items():
        graph.add_edge(a or "start", b or "end", share=count / leaving[a])
    depth = nx.single_source_shortest_path_length(graph, "start") if "start" in graph else {}
    depth["end"] = max(depth.values(), default=0) + 1
    columns: dict[int, list[str]] = {}
    for name, level in sorted(depth.items(), key=lambda kv: (kv[1], kv[0])):
        columns.setdefault(level, []).append(name)
    place = {n: (70 + 150 * level, 60 + 70 * i) for level, names in columns.items() for i, n in enumerate(names)}
    width, height = 150 * (len(columns)) + 20, 90 + 70 * max((len(n) for n in columns.values()), default=1)
    arrow = '<path d="M0,0L7,3L0,6z"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="11">',
        f'<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">{arrow}</marker>',
        "</defs>",
    ]
    for a, b, data in graph.edges(data=True):
        (x1, y1), (x2, y2) = place[a], place[b]
        share = data["share"]
        if a == b:
            path, label = f"M{x1 - 14},{y1 - 15} c-20,-37 48,-37 28,0", (x1, y1 - 46)
        else:
            bend = 0 if (x2 - x1, y2 - y1) == (150, 0) else -34 if x2 > x1 else 34
            side = 52 * ((x2 > x1) - (x2 < x1))
            middle = (x1 + x2) // 2, (y1 + y2) // 2 + bend
            path = f"M{x1 + side},{y1} Q{middle[0]},{middle[1] + 0.6 * bend} {x2 - side},{y2}"
            label = middle[0], middle[1] - 4
        thick = f"{0.6 + 2 * share:.1f}"
        parts.append(f'<path d="{path}" fill="none" stroke="#555" stroke-width="{thick}" marker-end="url(#a)"/>')
        parts.append(f'<text x="{label[0]}" y="{label[1]}" text-anchor="middle" fill="#555">{share:.0%}</text>')
    for name, (x, y) in place.items():
        box = f'x="{x - 52}" y="{y - 15}" width="104" height="30" rx="8" fill="#e8eefc" stroke="#4269d0"'
        parts.append(f'<rect {box}/><text x="{x}" y="{y + 4}" text-anchor="middle">{html.escape(name[:16])}</text>')
    return "".join([*parts, "</svg>"])
