"""Plan files: a function with its settings, where its tables live, what was predicted, and how the choice was made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from cora.errors import BadInput
from cora.files import read
from cora.functions import load
from cora.machine import Costs, Limits
from cora.model import Choice, Prediction, choices, placement_of, predict
from cora.placement import SPLIT, Placement, why_illegal
from cora.plan import Instance, Plan, broken_rule, evaluate, make_instance, search, simple_plans, total
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
class Problem:
    """A planning problem: a program under a profile on a machine. The other fields are those of `make_instance`."""

    program: Program
    profile: Profile
    costs: Costs
    limits: Limits
    cores: tuple[float, float] = (1.0, 1.0)
    rate_per_s: float = 0.0
    weight_fast: float = 0.1
    homes: tuple[str, ...] = ()

    @cached_property
    def instance(self) -> Instance:
        """The search problem; `homes` of the form TABLE=HOME[:ENTRIES] settle tables."""
        only: dict[str, list[Choice]] = {}
        for text in self.homes:
            found = re.fullmatch(r"(\w+)=(\w+)(?::(\d+))?", text)
            if not found or found[1] not in self.program.tables:
                known = ", ".join(self.program.tables)
                raise BadInput(f"--home {text}: write TABLE=HOME or TABLE=split:ENTRIES; tables: {known}")
            allowed = choices(self.program, self.program.tables[found[1]], self.limits)
            kept = [c for c in allowed if c.home == found[2] and (not found[3] or c.entries == int(found[3]))]
            if not kept:
                known = ", ".join(f"{c.home}:{c.entries}" if c.entries else c.home for c in allowed)
                raise BadInput(f"--home {text}: table {found[1]} can be {known}")
            only[found[1]] = kept
        return make_instance(
            self.program,
            self.profile,
            self.costs,
            self.limits,
            cores=self.cores,
            rate_per_s=self.rate_per_s,
            weight_fast=self.weight_fast,
            only=only,
        )

    def predict(self, chosen: dict[str, Choice]) -> Prediction:
        """Return what a plan will do."""
        rate = self.rate_per_s or None
        return predict(self.program, self.profile, self.costs, chosen, cores=self.cores, rate_per_s=rate)

    def solve(self, engine: str = "exact") -> Answer:
        """Return the cheapest plan that an engine finds."""
        plan = search(self.instance, engine)
        if why := why_illegal(self.program, placement_of(plan.chosen)):
            raise AssertionError(why)
        return Answer(self, plan, self.predict(plan.chosen))


@dataclass(frozen=True)
class Answer:
    """A plan for a problem, with what it will do."""

    problem: Problem
    plan: Plan
    prediction: Prediction

    def to_file(self, function: str, settings: dict[str, Any]) -> PlanFile:
        """Return the plan file's content."""
        problem, plan, instance = self.problem, self.plan, self.problem.instance
        placement = placement_of(plan.chosen)
        simple = {}
        for label, chosen in simple_plans(problem.program, instance).items():
            fast, slow, cross = evaluate(instance, chosen)
            simple[label] = {
                "cost_ns": total(instance, chosen),
                "fast_ns": fast,
                "slow_ns": slow,
                "crossing_share": cross,
                "breaks": broken_rule(instance, chosen),
            }
        return PlanFile(
            function=function,
            settings=settings,
            homes=placement.homes,
            fast_entries=placement.fast_entries,
            engine=plan.engine,
            search_s=plan.seconds,
            optimal=plan.optimal,
            cost_ns=plan.cost_ns,
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
        now = total(instance, chosen)
        for name, found in instance.choices.items():
            sizes = instance.fast_bytes[name]
            for number, choice in enumerate(found):
                following = {**chosen, name: choice}
                if choice == chosen[name] or why_illegal(self.problem.program, placement_of(following)):
                    continue
                saved = now - total(instance, following)
                if saved > max(0.05, best[1] if best else 0.0):
                    room = f"{choice.entries:,} entries of {name} fast"
                    words = room if choice.home == SPLIT else f"{name} {choice.home}"
                    best = (words, saved, sizes[number] - sizes[found.index(chosen[name])])
        return best
