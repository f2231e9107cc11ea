"""The plan in words and as a page: the DAG with tiers, tables with ns and bytes, the bottleneck, and what-if."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from cora.machine import Costs, Limits
from cora.model import Choice, Prediction, placement_of, run_class, step_costs
from cora.placement import FAST
from cora.placement import tiers as tiers_of
from cora.plan import Instance, Plan
from cora.planfile import make_plan, next_change
from cora.profile import Profile, make_profile
from cora.program import Program, successors
from cora.traffic import Shape, make_traffic

SKEWS = (0.0, 0.6, 1.0, 1.4)
MEMORIES = (1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 28)


def steps_in(program: Program, profile: Profile, costs: Costs, chosen: dict[str, Choice]) -> list[dict[str, Any]]:
    """Return each step with its tiers, share of packets, and ns per packet of the trace in each tier."""
    known, where = step_costs(program, profile, costs), tiers_of(program, placement_of(chosen))
    ns: dict[tuple[int, str], float] = {}
    for one in profile.classes:
        for at, tier, cost in run_class(program, one, chosen, known)[3]:
            ns[(at, tier)] = ns.get((at, tier), 0.0) + one.weight * cost
    return [
        {
            "step": at,
            "what": program.describe(at),
            "tiers": sorted({tier for (step, tier) in ns if step == at} or where[at]),
            "share": profile.visits.get(at, 0.0),
            "fast_ns": ns.get((at, "fast"), 0.0),
            "slow_ns": ns.get((at, "slow"), 0.0),
            "next": list(successors(step)),
        }
        for at, step in enumerate(program.steps)
    ]


def explain(program: Program, found: tuple[Instance, Plan, Prediction], costs: Costs) -> str:
    """Return the plan in words."""
    instance, plan, prediction = found
    lines = [
        f"{program.name}: {prediction.slow_cpu_ns:.0f} ns a packet in the slow tier, "
        f"{prediction.fast_cpu_ns:.0f} ns in the fast tier; {prediction.cross_share:.1%} of the packets cross.",
        f"Ceiling: {prediction.ceiling_per_s / 1e6:.2f} million packets a second. Bottleneck: {prediction.bottleneck}.",
        f"Mean latency {prediction.latency_ns / 1000:.1f} us at the profile's rate; {prediction.loss_share:.2%} lost.",
        f"Tables in the fast tier: {prediction.fast_bytes:,} bytes. Costs measured {costs.when} on {costs.where}.",
        "",
    ]
    for name, choice in plan.chosen.items():
        table = program.tables[name]
        number = instance.choices[name].index(choice)
        fast, slow = (prediction.table_ns.get(f"{name}.{tier}", 0.0) for tier in ("fast", "slow"))
        room = (
            f" ({choice.entries:,} of {table.entries:,} entries)" if choice.entries else f" ({table.entries:,} entries)"
        )
        lines.append(
            f"  {name:12} {table.kind:8} {choice.home:5}{room:30} "
            f"{instance.bytes[name][number]:>12,} B  fast {fast:6.1f} ns  slow {slow:6.1f} ns"
        )
    change = next_change(program, instance, plan.chosen)
    lines.append("")
    if change:
        words, saved, more = change
        lines.append(
            f"Next change: {words} would save {saved:.1f} ns a packet for {more:,} bytes more in the fast tier."
        )
    else:
        lines.append("Next change: no move of one table saves anything; only other traffic or another program would.")
    if not costs.network:
        lines.append("Costs of real devices are not in the parameter file; `cora calibrate --network` measures them.")
    return "\n".join(lines)


def what_if(name: str, program: Program, costs: Costs, limits: Limits) -> list[dict[str, Any]]:
    """Return predictions over skews and memories, for made traffic of the function."""
    rows = []
    for skew in SKEWS:
        profile = make_profile(program, make_traffic(name, Shape(skew=skew, packets=2000)))
        for memory in MEMORIES:
            _, plan, found = make_plan(program, profile, costs, replace(limits, bytes=memory), engine="greedy")
            rows.append(
                {
                    "skew": skew,
                    "fast_bytes": memory,
                    "slow_ns": round(found.slow_cpu_ns, 1),
                    "fast_ns": round(found.fast_cpu_ns, 1),
                    "crossing_share": round(found.cross_share, 4),
                    "ceiling_per_s": round(found.ceiling_per_s),
                    "plan": placement_of(plan.chosen).label(),
                }
            )
    return rows


def _picture(steps: list[dict[str, Any]]) -> str:
    """Return the DAG as SVG: one row a step, edges on the left, colours by tier, the most expensive step framed."""
    worst = max(steps, key=lambda one: one["fast_ns"] + one["slow_ns"])["step"]
    rows, edges = [], []
    for one in steps:
        y = 14 + 26 * one["step"]
        colour = {("fast",): "#cfe8d5", ("slow",): "#f3d9c0"}.get(tuple(one["tiers"]), "#e8e2f3")
        frame = "#b00020" if one["step"] == worst else "#888"
        text = html.escape(f"{one['step']}. {one['what']}")
        figures = f"{one['share']:.0%}  fast {one['fast_ns']:.1f} ns  slow {one['slow_ns']:.1f} ns"
        rows.append(
            f'<rect x="120" y="{y - 12}" width="300" height="20" rx="3" fill="{colour}" stroke="{frame}"/>'
            f'<text x="128" y="{y + 3}">{text}</text><text x="432" y="{y + 3}" fill="#555">{figures}</text>'
        )
        for target in one["next"]:
            to = 14 + 26 * target
            bend = 110 - min(100, 8 * (target - one["step"]))
            edges.append(f'<path d="M120 {y} C {bend} {y}, {bend} {to}, 120 {to}" fill="none" stroke="#999"/>')
    height = 26 * len(steps) + 10
    return f'<svg width="760" height="{height}" font-size="12" font-family="sans-serif">{"".join(edges + rows)}</svg>'


def page(
    name: str,
    program: Program,
    profile: Profile,
    costs: Costs,
    limits: Limits,
    found: tuple[Instance, Plan, Prediction],
) -> str:
    """Return the plan page: one HTML file that needs nothing else."""
    instance, plan, prediction = found
    steps = steps_in(program, profile, costs, plan.chosen)
    template = (Path(__file__).parent / "data" / "plan.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    rows = what_if(name, program, costs, limits)
    return environment.from_string(template).render(
        name=program.name,
        words=explain(program, found, costs),
        picture=Markup(_picture(steps)),
        tables=[
            {
                "name": table,
                "kind": program.tables[table].kind,
                "home": choice.home,
                "entries": choice.entries or (program.tables[table].entries if choice.home != "slow" else 0),
                "bytes": instance.bytes[table][instance.choices[table].index(choice)],
                "fast_ns": prediction.table_ns.get(f"{table}.{FAST}", 0.0),
                "slow_ns": prediction.table_ns.get(f"{table}.slow", 0.0),
            }
            for table, choice in plan.chosen.items()
        ],
        limits=f"{limits.kind}: {limits.source}",
        costs=f"{costs.kind} {costs.when}, {costs.where}",
        rows=Markup(json.dumps(rows).replace("<", "\\u003c")),
        skews=SKEWS,
        memories=MEMORIES,
    )
