"""Plan files: a function with its settings, where its tables live, what was predicted, and how the choice was made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from cora.errors import BadInput
from cora.files import read
from cora.functions import load
from cora.model import Prediction, placement_of, predict
from cora.placement import SPLIT, Placement, why_illegal
from cora.plan import Plan, Problem, search, simple_plans
from cora.profile import Profile
from cora.program import Program


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

    def open(self, where: str) -> tuple[Program, Placement]:
        """Return the program and the placement; raise BadInput where they do not fit."""
        program, placement = load(self.function, self.settings), Placement(self.homes, self.fast_entries, self.bounces)
        splits = {name for name, home in self.homes.items() if home == SPLIT}
        if set(self.homes) != set(program.tables) or splits != set(self.fast_entries):
            raise BadInput(f"{where} is a plan for other tables than those of {program.name}; plan again")
        if min(self.fast_entries.values(), default=1) < 1:
            raise BadInput(f"{where}: a split table needs room for one entry or more; plan again")
        if why := why_illegal(program, placement):
            raise BadInput(f"{where}: {why}; plan again")
        return program, placement


def read_plan(path: Path) -> tuple[PlanFile, Program, Placement]:
    """Return a plan file's content, its program, and its placement."""
    data = read(path, PlanFile, "make it with `cora plan`")
    return data, *data.open(str(path))


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
        best: tuple[str, float, int] | None = None
        instance, chosen = self.problem.instance, self.plan.chosen
        now = instance.cost(chosen).cost_ns
        for name, found in instance.choices.items():
            sizes = instance.fast_bytes[name]
            for number, choice in enumerate(found):
                following = {**chosen, name: choice}
                if choice == chosen[name] or why_illegal(self.problem.program, placement_of(following)):
                    continue
                saved = now - instance.cost(following).cost_ns
                if saved > max(0.05, best[1] if best else 0.0):
                    room = f"{choice.entries:,} entries of {name} fast"
                    words = room if choice.home == SPLIT else f"{name} {choice.home}"
                    best = (words, saved, sizes[number] - sizes[found.index(chosen[name])])
        return best


def solve(problem: Problem, engine: str = "exact") -> Answer:
    """Return the cheapest plan that an engine finds."""
    return Answer(problem, search(problem.instance, engine))
