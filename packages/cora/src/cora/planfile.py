"""Plans in files, in words, and as a page.

A plan file holds a function with its settings, where its tables live, what was predicted, and how the choice was made.
The page shows the DAG with tiers, tables with ns and bytes, the bottleneck, and what-if.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from cora.errors import BadInput
from cora.files import read
from cora.functions import load
from cora.model import Prediction, placement_of, predict
from cora.placement import SPLIT, Placement, why_illegal
from cora.placement import tiers as tiers_of
from cora.plan import Plan, Problem, search, simple_plans
from cora.profile import Profile, make_profile
from cora.program import Program, successors
from cora.traffic import Shape, make_traffic


class PlanFile(msgspec.Struct, kw_only=True):
    """A plan file. `run`, `build` and `bench` need the first four fields; the others say how the plan was chosen."""

    function: str
    settings: dict[str, Any]
    homes: dict[str, str]
    fast_entries: dict[str, int]
    bounces: bool = False
    engine: str = ""
    search_s: float = 0.0
    optimal: bool = False
    cost_ns: float = 0.0
    prediction: Prediction | None = None
    simple_plans: dict[str, dict[str, Any]] = {}
    costs: dict[str, str] = {}
    limits: dict[str, str] = {}
    instance: dict[str, Any] = {}
    profile: Profile | None = None


def read_plan(path: Path) -> tuple[PlanFile, Program, Placement]:
    """Return a plan file's content, its program, and its placement; raise BadInput where they do not fit."""
    data = read(path, PlanFile, "make it with `cora plan`")
    program, placement = load(data.function, data.settings), Placement(data.homes, data.fast_entries, data.bounces)
    splits = {name for name, home in data.homes.items() if home == SPLIT}
    if set(data.homes) != set(program.tables) or splits != set(data.fast_entries):
        raise BadInput(f"{path} is a plan for other tables than those of {program.name}; plan again")
    if min(data.fast_entries.values(), default=1) < 1:
        raise BadInput(f"{path}: a split table needs room for one entry or more; plan again")
    if why := why_illegal(program, placement):
        raise BadInput(f"{path}: {why}; plan again")
    return data, program, placement


@dataclass(frozen=True)
class Answer:
    """A plan for a problem, with what it will do."""

    problem: Problem
    plan: Plan

    @cached_property
    def prediction(self) -> Prediction:
        """What the plan will do."""
        problem = self.problem
        rate = problem.rate_per_s or problem.profile.rate_per_s
        return predict(problem.program, problem.profile, problem.costs, self.plan.chosen, problem.cores, rate)

    def to_file(self, function: str, settings: dict[str, Any]) -> PlanFile:
        """Return the plan file's content."""
        problem, plan, instance = self.problem, self.plan, self.problem.instance
        placement = placement_of(plan.chosen)
        simple = {
            label: {**instance.cost(chosen)._asdict(), "breaks": instance.broken_rule(chosen)}
            for label, chosen in simple_plans(problem.program, instance).items()
        }
        return PlanFile(
            function=function,
            settings=settings,
            homes=placement.homes,
            fast_entries=placement.fast_entries,
            engine=plan.engine,
            search_s=plan.seconds,
            optimal=plan.optimal,
            cost_ns=plan.cost.cost_ns,
            prediction=self.prediction,
            simple_plans=simple,
            costs={name: getattr(problem.costs, name) for name in ("kind", "when", "where")},
            limits={name: getattr(problem.limits, name) for name in ("kind", "source")},
            instance=instance.to_json(),
            profile=problem.profile,
        )

    def next_change(self) -> tuple[str, float, int] | None:
        """Return the single change that saves most: in words, ns per packet saved, bytes more in the fast tier.

        Limits of memory and entries are ignored, so that the change says what more room would bring.
        """
        found = []
        instance, chosen = self.problem.instance, self.plan.chosen
        for name, number, choice in ((n, i, one) for n, all_ in instance.choices.items() for i, one in enumerate(all_)):
            following, sizes = {**chosen, name: choice}, instance.fast_bytes[name]
            if choice != chosen[name] and not why_illegal(self.problem.program, placement_of(following)):
                saved = instance.cost(chosen).cost_ns - instance.cost(following).cost_ns
                room = f"{choice.entries:,} entries of {name} fast"
                words = room if choice.home == SPLIT else f"{name} {choice.home}"
                found.append((words, saved, sizes[number] - sizes[instance.choices[name].index(chosen[name])]))
        best = max(found, key=lambda one: one[1], default=("", 0.0, 0))
        return best if best[1] > 0.05 else None


def solve(problem: Problem, engine: str = "exact") -> Answer:
    """Return the cheapest plan that an engine finds."""
    return Answer(problem, search(problem.instance, engine))


SKEWS = (0.0, 0.6, 1.0, 1.4)
MEMORIES = (1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 28)


def steps_in(answer: Answer) -> list[dict[str, Any]]:
    """Return each step with its tiers, share of packets, and ns per packet of the trace in each tier."""
    program, ns = answer.problem.program, answer.prediction.step_ns
    where = tiers_of(program, placement_of(answer.plan.chosen))
    return [
        {
            "step": at,
            "what": program.describe(at),
            "tiers": sorted({tier for tier in ("fast", "slow") if f"{at}.{tier}" in ns} or where[at]),
            "share": answer.problem.profile.visits.get(at, 0.0),
            "fast_ns": ns.get(f"{at}.fast", 0.0),
            "slow_ns": ns.get(f"{at}.slow", 0.0),
            "next": list(successors(step)),
        }
        for at, step in enumerate(program.steps)
    ]


def tables_in(answer: Answer) -> list[dict[str, Any]]:
    """Return each table with its home, entries and bytes in the fast tier, and ns per packet in each tier."""
    instance, found = answer.problem.instance, []
    for name, choice in answer.plan.chosen.items():
        table, number = answer.problem.program.tables[name], instance.choices[name].index(choice)
        row = {"name": name, "kind": table.kind, "home": choice.home, "all_entries": table.entries}
        row |= {"entries": instance.entries[name][number], "bytes": instance.fast_bytes[name][number]}
        row |= {f"{tier}_ns": answer.prediction.table_ns.get(f"{name}.{tier}", 0.0) for tier in ("fast", "slow")}
        found.append(row)
    return found


def explain(answer: Answer) -> str:
    """Return the plan in words."""
    prediction, costs = answer.prediction, answer.problem.costs
    lines = [
        f"{answer.problem.program.name}: {prediction.slow_cpu_ns:.0f} ns a packet in the slow tier, "
        f"{prediction.fast_cpu_ns:.0f} ns in the fast tier; {prediction.crossing_share:.1%} of the packets cross.",
        f"Ceiling: {prediction.ceiling_per_s / 1e6:.2f} million packets a second. Bottleneck: {prediction.bottleneck}.",
        f"Mean latency {prediction.latency_ns / 1000:.1f} us at the profile's rate; {prediction.loss_share:.2%} lost.",
        f"Tables in the fast tier: {prediction.fast_bytes:,} bytes. Costs measured {costs.when} on {costs.where}.",
        "",
    ]
    for row in tables_in(answer):
        part = f"{row['entries']:,} of " if row["home"] == "split" else ""
        room = f" ({part}{row['all_entries']:,} entries)"
        lines.append(
            f"  {row['name']:12} {row['kind']:8} {row['home']:5}{room:30} "
            f"{row['bytes']:>12,} B  fast {row['fast_ns']:6.1f} ns  slow {row['slow_ns']:6.1f} ns"
        )
    lines.append("")
    if change := answer.next_change():
        words, saved, more = change
        lines.append(
            f"Next change: {words} would save {saved:.1f} ns a packet for {more:,} bytes more in the fast tier."
        )
    else:
        lines.append("Next change: no move of one table saves anything; only other traffic or another program would.")
    if not costs.network:
        lines.append("Costs of real devices are not in the parameter file; `cora calibrate --network` measures them.")
    return "\n".join(lines)


def what_if(name: str, answer: Answer) -> list[dict[str, Any]]:
    """Return predictions over skews and memories, for made traffic of the function."""
    rows, problem = [], answer.problem
    for skew in SKEWS:
        profile = make_profile(problem.program, make_traffic(name, Shape(skew=skew, packets=2000)))
        for memory in MEMORIES:
            limits = msgspec.structs.replace(problem.limits, bytes=memory)
            found = solve(replace(problem, profile=profile, limits=limits, homes=(), rate_per_s=0.0), "greedy")
            rows.append(
                {
                    "skew": skew,
                    "fast_bytes": memory,
                    "slow_ns": round(found.prediction.slow_cpu_ns, 1),
                    "fast_ns": round(found.prediction.fast_cpu_ns, 1),
                    "crossing_share": round(found.prediction.crossing_share, 4),
                    "ceiling_per_s": round(found.prediction.ceiling_per_s),
                    "plan": placement_of(found.plan.chosen).label(),
                }
            )
    return rows


def page(name: str, answer: Answer) -> str:
    """Return the plan page: one HTML file that needs nothing else."""
    problem, steps = answer.problem, steps_in(answer)
    template = (Path(__file__).parent / "data" / "plan.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(
        name=problem.program.name,
        words=explain(answer),
        steps=steps,
        worst=max(steps, key=lambda one: one["fast_ns"] + one["slow_ns"])["step"],
        colours={"fast": "#cfe8d5", "slow": "#f3d9c0", "fast slow": "#e8e2f3", "": "#fff"},
        tables=tables_in(answer),
        limits=f"{problem.limits.kind} {problem.limits.source}".strip(),
        costs=f"{problem.costs.kind} {problem.costs.when}, {problem.costs.where}",
        rows=what_if(name, answer),
        skews=SKEWS,
        memories=MEMORIES,
    )
