"""Plan files: a function with its settings, where its tables live, what was predicted, and how the choice was made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cora.errors import BadInput
from cora.functions import load
from cora.machine import Costs, Limits
from cora.model import Choice, Prediction, choices, placement_of, predict
from cora.placement import SPLIT, Placement, why_illegal
from cora.plan import Instance, Plan, broken_rule, evaluate, make_instance, search, simple_plans, total
from cora.profile import Profile
from cora.program import Program


def parse_homes(program: Program, limits: Limits, texts: tuple[str, ...]) -> dict[str, list[Choice]]:
    """Return the choices that `--home TABLE=HOME[:ENTRIES]` leaves."""
    only: dict[str, list[Choice]] = {}
    for text in texts:
        found = re.fullmatch(r"(\w+)=(\w+)(?::(\d+))?", text)
        if not found or found[1] not in program.tables:
            raise BadInput(
                f"--home {text}: write TABLE=HOME or TABLE=split:ENTRIES; tables: {', '.join(program.tables)}"
            )
        table = program.tables[found[1]]
        kept = [
            c
            for c in choices(program, table, limits)
            if c.home == found[2] and (not found[3] or c.entries == int(found[3]))
        ]
        if not kept:
            known = ", ".join(
                dict.fromkeys(f"{c.home}:{c.entries}" if c.entries else c.home for c in choices(program, table, limits))
            )
            raise BadInput(f"--home {text}: table {table.name} can be {known}")
        only[table.name] = kept
    return only


def make_plan(  # noqa: PLR0913 - one argument a choice
    program: Program,
    profile: Profile,
    costs: Costs,
    limits: Limits,
    *,
    engine: str = "exact",
    cores: tuple[float, float] = (1.0, 1.0),
    rate_per_s: float = 0.0,
    weight_fast: float = 0.1,
    only: dict[str, list[Choice]] | None = None,
) -> tuple[Instance, Plan, Prediction]:
    """Return the search problem, its answer, and what the answer will do."""
    instance = make_instance(
        program, profile, costs, limits, cores=cores, rate_per_s=rate_per_s, weight_fast=weight_fast, only=only
    )
    plan = search(instance, engine)
    if why := why_illegal(program, placement_of(plan.chosen)):
        raise AssertionError(why)
    return instance, plan, predict(program, profile, costs, plan.chosen, cores=cores, rate_per_s=rate_per_s or None)


def plan_to_json(
    name: str,
    settings: dict[str, Any],
    program: Program,
    found: tuple[Instance, Plan, Prediction],
    costs: Costs,
) -> dict[str, Any]:
    """Return the plan file's content."""
    instance, plan, prediction = found
    placement = placement_of(plan.chosen)
    simple = {}
    for label, chosen in simple_plans(program, instance).items():
        fast, slow, cross = evaluate(instance, chosen)
        simple[label] = {
            "cost_ns": total(instance, chosen),
            "fast_ns_per_packet": fast,
            "slow_ns_per_packet": slow,
            "crossing_share": cross,
            "breaks": broken_rule(instance, chosen),
        }
    return {
        "function": name,
        "settings": settings,
        "homes": placement.homes,
        "fast_entries": placement.fast_entries,
        "engine": plan.engine,
        "search_s": plan.seconds,
        "optimal": plan.optimal,
        "cost_ns": plan.cost_ns,
        "prediction": {
            "fast_program_ns_per_packet": prediction.fast_ns,
            "slow_program_ns_per_packet": prediction.slow_ns,
            "fast_cpu_ns_per_packet": prediction.fast_cpu_ns,
            "slow_cpu_ns_per_packet": prediction.slow_cpu_ns,
            "crossing_share": prediction.cross_share,
            "ceiling_packets_per_s": prediction.ceiling_per_s,
            "bottleneck": prediction.bottleneck,
            "latency_ns": prediction.latency_ns,
            "loss_share": prediction.loss_share,
            "fast_bytes": prediction.fast_bytes,
            "table_ns_per_packet": prediction.table_ns,
        },
        "simple_plans": simple,
        "costs": {"kind": costs.kind, "when": costs.when, "where": costs.where},
        "limits": {"kind": instance.limits.kind, "source": instance.limits.source},
        "instance": instance.to_json(),
    }


def read_plan(path: Path) -> tuple[dict[str, Any], Program, Placement]:
    """Return a plan file's content, its program, and its placement."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        placement = Placement(data["homes"], data["fast_entries"])
        program = load(data["function"], data["settings"])
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is no plan ({error}); make one with `cora plan`") from error
    if set(placement.homes) != set(program.tables):
        raise BadInput(f"{path} is a plan for other tables than those of {program.name}; plan again")
    if why := why_illegal(program, placement):
        raise BadInput(f"{path}: {why}; plan again")
    return data, program, placement


def next_change(program: Program, instance: Instance, chosen: dict[str, Choice]) -> tuple[str, float, int] | None:
    """Return the cheapest single change that saves most: in words, ns per packet saved, bytes more in the fast tier.

    Limits of memory and entries are ignored, so that the change says what more room would bring.
    """
    best: tuple[str, float, int] | None = None
    now = total(instance, chosen)
    for name, found in instance.choices.items():
        for number, choice in enumerate(found):
            following = {**chosen, name: choice}
            if choice == chosen[name] or why_illegal(program, placement_of(following)):
                continue
            saved = now - total(instance, following)
            more = instance.bytes[name][number] - instance.bytes[name][found.index(chosen[name])]
            if saved > 0.05 and (best is None or saved > best[1]):
                words = (
                    f"{choice.entries:,} entries of {name} fast" if choice.home == SPLIT else f"{name} {choice.home}"
                )
                best = (words, saved, more)
    return best
