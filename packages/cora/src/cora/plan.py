"""Plans: which table lives where. CP-SAT, an exhaustive search as its slow twin, and a greedy one for re-planning.

All three minimise the same cost: slow-tier ns per packet, plus a small weight on fast-tier ns. They read the same
`Instance`: the trie of packet classes with the cost of every operation under every choice. A packet class is a walk
down the trie. It is fast until the first node whose table does not hold its key, and slow from there on.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cora.errors import BadInput, NoPlan
from cora.machine import Costs, Limits
from cora.model import MISS, Choice, choices, instructions, placement_of, step_costs, wakes_per_packet
from cora.placement import BOTH, FAST, SLOW, SPLIT, fast_bytes, why_illegal
from cora.profile import SPLITS, Profile
from cora.program import Access, Program, Table, Verdict, successors

ENGINES = ("exact", "exhaustive", "greedy")
#: Largest number of plans that the exhaustive search tries: ten tables with three choices each.
MOST_PLANS = 59_049
SCALE = 1000  # the solver counts in thousandths of a ns


class Node(NamedTuple):
    """An operation that a share of the packets comes to, after that of the parent node.

    Attributes:
        parent: Index of the parent node, -1 at the root.
        table: Table of the operation.
        bracket: Rank bracket of the key.
        weight: Share of all packets, 0-1.
        fast_ns: ns of the operation and the steps after it in the fast tier, by home.
        slow_ns: The same in the slow tier.
    """

    parent: int
    table: str
    bracket: int
    weight: float
    fast_ns: dict[str, float]
    slow_ns: float


@dataclass(frozen=True)
class Instance:
    """Everything a search needs, and everything needed to check its answer.

    Attributes:
        choices: Choices of each table.
        bytes: Fast-tier bytes by table and choice number.
        nodes: The trie; a parent comes before its children.
        base_ns: Fast-tier ns before the first operation.
        cross_fast_ns: What crossing costs the fast tier.
        cross_slow_ns: What crossing costs the slow tier.
        before: Pairs of tables: packets may come to the second after the first.
        never_slow: Tables after which packets may go up to the stack, so that they cannot cross there.
        limits: Limits of the fast tier.
        entries: Entries by table and choice number.
        instructions: Instructions by table while it is in the fast tier, and those of the rest ("").
        fast_limit_ns: Most fast-tier ns per packet at the asked rate.
        slow_limit_ns: Most slow-tier ns per packet at the asked rate.
        weight_fast: Weight of a fast-tier ns beside a slow-tier one.
    """

    choices: dict[str, list[Choice]]
    bytes: dict[str, list[int]]
    entries: dict[str, list[int]]
    nodes: list[Node]
    base_ns: float
    cross_fast_ns: float
    cross_slow_ns: float
    before: list[tuple[str, str]]
    never_slow: list[str]
    limits: Limits
    instructions: dict[str, int]
    fast_limit_ns: float
    slow_limit_ns: float
    weight_fast: float

    def to_json(self) -> dict[str, Any]:
        """Return the instance with units in its names, for others to check a plan."""
        return {
            "tables": {
                name: [
                    {
                        "home": choice.home,
                        "fast_entries": choice.entries,
                        "fast_bytes": self.bytes[name][number],
                        "entries": self.entries[name][number],
                    }
                    for number, choice in enumerate(self.choices[name])
                ]
                for name in self.choices
            },
            "split_sizes_entries": list(SPLITS),
            "nodes": [
                {
                    "parent": node.parent,
                    "table": node.table,
                    "rank_bracket": node.bracket,
                    "share": node.weight,
                    "fast_ns_by_home": node.fast_ns,
                    "slow_ns": node.slow_ns,
                }
                for node in self.nodes
            ],
            "base_fast_ns": self.base_ns,
            "crossing_fast_ns": self.cross_fast_ns,
            "crossing_slow_ns": self.cross_slow_ns,
            "no_fast_table_after": [list(pair) for pair in self.before],
            "tables_before_up": self.never_slow,
            "limit_fast_bytes": self.limits.bytes,
            "limit_entries": self.limits.entries,
            "limit_instructions": self.limits.instructions,
            "instructions": self.instructions,
            "limit_fast_ns_per_packet": self.fast_limit_ns,
            "limit_slow_ns_per_packet": self.slow_limit_ns,
            "weight_of_fast_ns": self.weight_fast,
        }


class Plan(NamedTuple):
    """A search's answer.

    Attributes:
        chosen: Choice of each table.
        cost_ns: Slow-tier ns per packet plus the weighted fast-tier ns.
        fast_ns: Fast-tier ns per packet.
        slow_ns: Slow-tier ns per packet.
        cross_share: Share of packets that cross, 0-1.
        engine: The search.
        seconds: Time it took.
        optimal: True if no plan is cheaper.
    """

    chosen: dict[str, Choice]
    cost_ns: float
    fast_ns: float
    slow_ns: float
    cross_share: float
    engine: str
    seconds: float
    optimal: bool


def order_of_tables(program: Program) -> tuple[list[tuple[str, str]], list[str]]:
    """Return pairs of tables of which a packet may use the second after the first, and tables before an `up`."""
    seen: list[set[str]] = [set() for _ in program.steps]
    pairs: set[tuple[str, str]] = set()
    up: set[str] = set()
    for at, step in enumerate(program.steps):
        if isinstance(step, Access):
            pairs |= {(first, step.table) for first in seen[at]}
        if isinstance(step, Verdict) and step.kind == "up":
            up |= seen[at]
        after = seen[at] | {step.table} if isinstance(step, Access) else seen[at]
        for target in successors(step):
            seen[target] |= after
    return sorted(pairs), sorted(up)


def make_instance(
    program: Program,
    profile: Profile,
    costs: Costs,
    limits: Limits,
    *,
    cores: tuple[float, float] = (1.0, 1.0),
    rate_per_s: float = 0.0,
    weight_fast: float = 0.1,
    only: dict[str, list[Choice]] | None = None,
) -> Instance:
    """Return the search problem of a program under a profile.

    Args:
        program: The network function.
        profile: The traffic.
        costs: The machine.
        limits: What the fast tier can hold.
        cores: Cores of the fast and the slow tier.
        rate_per_s: Packets a second that both tiers must take; 0 for no such limit.
        weight_fast: Weight of a fast-tier ns beside a slow-tier one.
        only: Choices of tables that are settled already.
    """
    known = step_costs(program, profile, costs)
    options = {t.name: (only or {}).get(t.name) or choices(program, t, limits) for t in program.tables.values()}
    nodes: list[Node] = []
    index: dict[tuple[int, int, int, tuple[int, ...]], int] = {}
    base = costs.tiers["fast"].base + (costs.tiers["fast"].steps["now"] if program.uses_time else 0.0)
    for one in profile.classes:
        segments, lead = _segments(program, one.steps)
        base += one.weight * sum(known.fast[at] for at in lead)
        parent = -1
        for (at, tail), bracket in zip(segments, one.brackets, strict=True):
            step = program.steps[at]
            assert isinstance(step, Access)
            key = (parent, at, bracket, tail)
            rest_fast, rest_slow = sum(known.fast[i] for i in tail), sum(known.slow[i] for i in tail)
            if key not in index:
                index[key] = len(nodes)
                by_home = {home: known.access[(at, home)] + rest_fast for home in (FAST, SPLIT, BOTH)}
                by_home[MISS] = known.access[(at, MISS)]
                nodes.append(Node(parent, step.table, bracket, 0.0, by_home, known.slow[at] + rest_slow))
            parent = index[key]
            nodes[parent] = nodes[parent]._replace(weight=nodes[parent].weight + one.weight)
    budget = 0.9 * 1e9 / rate_per_s if rate_per_s else 1e12
    bare = instructions(program, ())
    pairs, up = order_of_tables(program)
    return Instance(
        choices=options,
        bytes={name: [_bytes(program, name, choice) for choice in found] for name, found in options.items()},
        entries={name: [_entries(program.tables[name], choice) for choice in found] for name, found in options.items()},
        nodes=nodes,
        base_ns=base + costs.network.get("fast", 0.0),
        cross_fast_ns=costs.hand_over,
        cross_slow_ns=costs.tiers["slow"].base
        + costs.network.get("slow", 0.0)
        + costs.network.get("wake", 0.0) * wakes_per_packet(rate_per_s or profile.rate_per_s),
        before=pairs,
        never_slow=up,
        limits=limits,
        instructions={"": bare, **{name: instructions(program, (name,)) - bare for name in options}},
        fast_limit_ns=budget * cores[0],
        slow_limit_ns=budget * cores[1],
        weight_fast=weight_fast,
    )


def _segments(program: Program, steps: tuple[int, ...]) -> tuple[list[tuple[int, tuple[int, ...]]], list[int]]:
    """Return (operation, steps until the next one) along a path, and the steps before the first operation."""
    lead: list[int] = []
    found: list[tuple[int, list[int]]] = []
    for at in steps:
        if isinstance(program.steps[at], Access):
            found.append((at, []))
        else:
            (found[-1][1] if found else lead).append(at)
    return [(at, tuple(tail)) for at, tail in found], lead


def _bytes(program: Program, name: str, choice: Choice) -> int:
    others = {other: Choice(SLOW) for other in program.tables}
    return fast_bytes(program, placement_of({**others, name: choice}), program.tables[name])


def _entries(table: Table, choice: Choice) -> int:
    return 0 if choice.home == SLOW else choice.entries or table.entries


def evaluate(instance: Instance, chosen: dict[str, Choice]) -> tuple[float, float, float]:
    """Return fast ns, slow ns and the share of crossing packets of a plan."""
    slow_from: list[bool] = []
    fast, slow, cross = instance.base_ns, 0.0, 0.0
    for node in instance.nodes:
        choice = chosen[node.table]
        before = node.parent >= 0 and slow_from[node.parent]
        here = before or not choice.holds(node.bracket)
        slow_from.append(here)
        if here and not before:
            cross += node.weight
            fast += node.weight * (node.fast_ns[MISS] if choice.home == SPLIT else 0.0)
        if here:
            slow += node.weight * node.slow_ns
        else:
            fast += node.weight * node.fast_ns[choice.home]
    return fast + cross * instance.cross_fast_ns, slow + cross * instance.cross_slow_ns, cross


def broken_rule(instance: Instance, chosen: dict[str, Choice]) -> str:
    """Return which limit or order a plan breaks, or ""."""
    number = {name: instance.choices[name].index(choice) for name, choice in chosen.items()}
    inside = [name for name, choice in chosen.items() if choice.home != SLOW]
    for first, second in instance.before:
        if chosen[second].home == FAST and chosen[first].home in {SLOW, SPLIT}:
            return f"table {second} is fast, but packets come to it after {first}, where they may have crossed"
    for name in instance.never_slow:
        if chosen[name].home in {SLOW, SPLIT}:
            return f"packets may go up to the stack after table {name}, so it must be fast"
    if sum(instance.bytes[name][number[name]] for name in chosen) > instance.limits.bytes:
        return f"the tables take more than {instance.limits.bytes:,} bytes of the fast tier"
    if sum(instance.entries[name][number[name]] for name in chosen) > instance.limits.entries:
        return f"the tables have more than {instance.limits.entries:,} entries in the fast tier"
    if sum(instance.instructions[name] for name in ["", *inside]) > instance.limits.instructions:
        return f"the fast tier takes more than {instance.limits.instructions:,} instructions"
    fast, slow, _ = evaluate(instance, chosen)
    if fast > instance.fast_limit_ns:
        return f"the fast tier needs {fast:.0f} ns a packet and has {instance.fast_limit_ns:.0f} at this rate"
    if slow > instance.slow_limit_ns:
        return f"the slow tier needs {slow:.0f} ns a packet and has {instance.slow_limit_ns:.0f} at this rate"
    return ""


def total(instance: Instance, chosen: dict[str, Choice]) -> float:
    """Return what the searches minimise."""
    fast, slow, _ = evaluate(instance, chosen)
    return slow + instance.weight_fast * fast


def search(
    instance: Instance, engine: str = "exact", limit_s: float = 10.0, start: dict[str, Choice] | None = None
) -> Plan:
    """Return the cheapest plan that an engine finds."""
    if engine == "exact":
        import ortools.sat.python.cp_model  # noqa: F401 - loading the solver is no part of the search

    begin = time.perf_counter()
    if engine == "exact":
        chosen, optimal = _exact(instance, limit_s)
    elif engine == "exhaustive":
        chosen, optimal = _exhaustive(instance), True
    elif engine == "greedy":
        chosen, optimal = _greedy(instance, start), False
    else:
        raise BadInput(f"unknown engine {engine!r}; use one of {', '.join(ENGINES)}")
    seconds = time.perf_counter() - begin
    fast, slow, cross = evaluate(instance, chosen)
    return Plan(chosen, slow + instance.weight_fast * fast, fast, slow, cross, engine, seconds, optimal)


def _no_plan(instance: Instance) -> NoPlan:
    slow = {name: found[0] if found[0].home == SLOW else found[-1] for name, found in instance.choices.items()}
    reason = broken_rule(instance, slow) or "the limits exclude each other"
    return NoPlan(f"no plan meets the limits; with every table slow, {reason}. Lower --rate or give more cores")


def _exhaustive(instance: Instance) -> dict[str, Choice]:
    count = 1
    for found in instance.choices.values():
        count *= len(found)
    if count > MOST_PLANS:
        raise BadInput(f"{count:,} plans are too many for an exhaustive search (at most {MOST_PLANS:,}); use exact")
    best: tuple[float, dict[str, Choice]] | None = None
    for combination in itertools.product(*instance.choices.values()):
        chosen = dict(zip(instance.choices, combination, strict=True))
        if (best is None or total(instance, chosen) < best[0] - 1e-12) and not broken_rule(instance, chosen):
            best = (total(instance, chosen), chosen)
    if best is None:
        raise _no_plan(instance)
    return best[1]


def _exact(instance: Instance, limit_s: float) -> tuple[dict[str, Choice], bool]:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    x = {
        (name, number): model.new_bool_var(f"{name}.{choice.home}.{choice.entries}")
        for name, found in instance.choices.items()
        for number, choice in enumerate(found)
    }
    for name, found in instance.choices.items():
        model.add_exactly_one(x[(name, number)] for number in range(len(found)))

    def those(name: str, homes: Iterable[str]) -> list[Any]:
        return [x[(name, number)] for number, one in enumerate(instance.choices[name]) if one.home in homes]

    for first, second in instance.before:
        for fast in those(second, (FAST,)):
            model.add(sum(those(first, (SLOW, SPLIT))) == 0).only_enforce_if(fast)
    for name in instance.never_slow:
        model.add(sum(those(name, (SLOW, SPLIT))) == 0)
    model.add(sum(instance.bytes[n][i] * var for (n, i), var in x.items()) <= instance.limits.bytes)
    model.add(sum(instance.entries[n][i] * var for (n, i), var in x.items()) <= instance.limits.entries)
    inside = [instance.instructions[n] * var for n in instance.choices for var in those(n, (FAST, SPLIT, BOTH))]
    model.add(sum(inside) + instance.instructions[""] <= instance.limits.instructions)
    fast, slow = _solver_costs(instance, model, x)
    scaled = int(instance.weight_fast * 1000)
    model.add(sum(fast) + int(instance.base_ns * SCALE) <= int(min(instance.fast_limit_ns, 1e9) * SCALE))
    model.add(sum(slow) <= int(min(instance.slow_limit_ns, 1e9) * SCALE))
    model.minimize(1000 * sum(slow) + scaled * sum(fast))
    try:
        for name, choice in _greedy(instance, None).items():
            for number, one in enumerate(instance.choices[name]):
                model.add_hint(x[(name, number)], one == choice)
    except NoPlan:
        pass  # the greedy search gives up sooner than the solver
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        raise _no_plan(instance)
    chosen = {
        name: found[[solver.boolean_value(x[(name, i)]) for i in range(len(found))].index(True)]
        for name, found in instance.choices.items()
    }
    return chosen, status == cp_model.OPTIMAL


def _solver_costs(instance: Instance, model: Any, x: dict[tuple[str, int], Any]) -> tuple[list[Any], list[Any]]:
    """Return terms of the fast and slow cost; a node's variable is true where packets are slow there."""
    fast: list[Any] = []
    slow: list[Any] = []
    variables: list[Any] = []

    def milli(weight: float, ns: float) -> int:
        return round(weight * ns * SCALE)

    for number, node in enumerate(instance.nodes):
        found = instance.choices[node.table]
        crossing = [x[(node.table, i)] for i, one in enumerate(found) if not one.holds(node.bracket)]
        parent = variables[node.parent] if node.parent >= 0 else 0
        here = model.new_bool_var(f"slow{number}")
        model.add(here >= parent)
        model.add(here >= sum(crossing))
        model.add(here <= parent + sum(crossing))
        variables.append(here)
        slow.append(milli(node.weight, node.slow_ns) * here)
        slow.append(milli(node.weight, instance.cross_slow_ns) * (here - parent))
        fast.append(milli(node.weight, instance.cross_fast_ns) * (here - parent))
        for i, one in enumerate(found):
            stays = one.holds(node.bracket)
            ns = node.fast_ns[one.home] if stays else node.fast_ns[MISS] if one.home == SPLIT else 0.0
            if not milli(node.weight, ns):
                continue
            taken = model.new_bool_var("")
            # The operation runs in the fast tier where the table is so and packets have not crossed before.
            model.add(taken >= x[(node.table, i)] - (here if stays else parent))
            fast.append(milli(node.weight, ns) * taken)
    return fast, slow


#: Seconds of CPU after which the greedy search takes the best plan that it has.
GREEDY_S = 0.007


class _Compiled:
    """An instance as arrays, by which many plans are priced at once; a plan is a row of choice numbers, int [T]."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.names = instance, list(instance.choices)
        nodes, width = instance.nodes, max(len(found) for found in instance.choices.values())
        table = {name: number for number, name in enumerate(self.names)}
        self.table = np.array([table[node.table] for node in nodes], dtype=int)
        self.parent = np.array([node.parent for node in nodes], dtype=int)
        self.weight = np.array([node.weight for node in nodes])
        self.slow = np.array([node.weight * node.slow_ns for node in nodes])
        self.holds = np.zeros((len(nodes), width), dtype=bool)
        self.fast = np.zeros((len(nodes), width))
        depth: list[int] = []
        for at, node in enumerate(nodes):
            depth.append(depth[node.parent] + 1 if node.parent >= 0 else 0)
            for number, choice in enumerate(instance.choices[node.table]):
                stays = self.holds[at, number] = choice.holds(node.bracket)
                home = choice.home if stays else MISS if choice.home == SPLIT else ""
                self.fast[at, number] = node.weight * node.fast_ns.get(home, 0.0)
        levels = np.array(depth, dtype=int)
        self.levels = [np.flatnonzero(levels == level) for level in range(max(depth, default=-1) + 1)]

        def filled(value: Callable[[str, int, Choice], float]) -> np.ndarray:
            out = np.zeros((len(self.names), width))
            for name, found in instance.choices.items():
                for number, choice in enumerate(found):
                    out[table[name], number] = value(name, number, choice)
            return out

        self.bytes = filled(lambda name, number, _: instance.bytes[name][number])
        self.entries = filled(lambda name, number, _: instance.entries[name][number])
        self.code = filled(lambda name, _, choice: instance.instructions[name] * (choice.home != SLOW))
        self.is_fast = filled(lambda *one: one[2].home == FAST) > 0
        self.crosses = filled(lambda *one: one[2].home in {SLOW, SPLIT}) > 0
        self.first = np.array([table[one] for one, _ in instance.before], dtype=int)
        self.second = np.array([table[one] for _, one in instance.before], dtype=int)
        self.stays = np.array([table[one] for one in instance.never_slow], dtype=int)

    def price(self, plans: np.ndarray) -> np.ndarray:
        """Return what the searches minimise for each plan, infinite where it breaks a rule: float [plans]."""
        instance, tables, nodes = self.instance, np.arange(len(self.names)), np.arange(len(self.table))
        taken = plans[:, self.table]
        crosses_here = ~self.holds[nodes, taken]
        slow = np.zeros((len(plans), len(nodes) + 1), dtype=bool)  # the last column stands for "no parent"
        for level in self.levels:
            slow[:, level] = slow[:, self.parent[level]] | crosses_here[:, level]
        before, slow = slow[:, self.parent], slow[:, :-1]
        cross = (slow & ~before) @ self.weight
        fast = instance.base_ns + np.where(before, 0.0, self.fast[nodes, taken]).sum(axis=1)
        fast += cross * instance.cross_fast_ns
        slow_ns = slow @ self.slow + cross * instance.cross_slow_ns
        crosses, is_fast, limits = self.crosses[tables, plans], self.is_fast[tables, plans], instance.limits
        legal = (fast <= instance.fast_limit_ns) & (slow_ns <= instance.slow_limit_ns)
        legal &= self.bytes[tables, plans].sum(axis=1) <= limits.bytes
        legal &= self.entries[tables, plans].sum(axis=1) <= limits.entries
        legal &= self.code[tables, plans].sum(axis=1) + instance.instructions[""] <= limits.instructions
        legal &= ~(is_fast[:, self.second] & crosses[:, self.first]).any(axis=1)
        legal &= ~crosses[:, self.stays].any(axis=1)
        return np.asarray(np.where(legal, slow_ns + instance.weight_fast * fast, np.inf))


def _greedy(instance: Instance, start: dict[str, Choice] | None) -> dict[str, Choice]:
    """Change one table at a time, or a run of the best changes, or swap two, until nothing saves any more."""
    deadline = time.thread_time() + GREEDY_S
    compiled = _Compiled(instance)
    names = compiled.names
    starts = [start] if start else list(_starts(instance))
    rows = np.array([[instance.choices[name].index(one[name]) for name in names] for one in starts])
    prices = compiled.price(rows)
    if not np.isfinite(prices).any():
        raise _no_plan(instance)
    plan, price = rows[prices.argmin()], prices.min()
    while time.thread_time() < deadline:
        tried = _changes(compiled, plan)
        if not len(tried):
            break
        after = compiled.price(tried)
        order = np.argsort(after)
        run = [plan]
        for index in order[after[order] < price][: len(names)]:  # the best changes on top of each other
            run.append(np.where(tried[index] != plan, tried[index], run[-1]))
        small = np.argsort(compiled.bytes[np.arange(len(names)), tried].sum(axis=1))[:10]
        swaps = [np.where(tried[i] != plan, tried[i], tried[j]) for i in order[:10] for j in small]
        candidates = np.array([tried[order[0]], *run, *swaps])
        found = compiled.price(candidates)
        if not found.min() < price - 1e-9:
            break
        plan, price = candidates[found.argmin()], found.min()
    return {name: instance.choices[name][number] for name, number in zip(names, plan.tolist(), strict=True)}


def _changes(compiled: _Compiled, plan: np.ndarray) -> np.ndarray:
    """Return plans that differ in one table; where it becomes fast, tables before it that cross become fast, too."""
    moves = []
    for t, name in enumerate(compiled.names):
        earlier = compiled.first[compiled.second == t]
        for number in range(len(compiled.instance.choices[name])):
            if number == plan[t]:
                continue
            moved = plan.copy()
            moved[t] = number
            if compiled.is_fast[t, number]:
                for one in earlier[compiled.crosses[earlier, moved[earlier]]]:
                    moved[one] = compiled.is_fast[one].argmax()
            moves.append(moved)
    return np.array(moves)


def _first_plan(instance: Instance) -> dict[str, Choice]:
    """Return everything slow, but fast what must be fast, and in both tiers what can be."""
    chosen = {}
    before_up = set(instance.never_slow)
    before_up |= {first for first, second in instance.before if second in before_up}
    for name, found in instance.choices.items():
        wanted = (BOTH, FAST) if name in before_up else (BOTH, SLOW, FAST)
        chosen[name] = next((one for home in wanted for one in found if one.home == home), found[0])
    if not broken_rule(instance, chosen):
        return chosen
    slow = {
        name: next((one for one in found if one.home == SLOW), found[0]) for name, found in instance.choices.items()
    }
    return {name: chosen[name] if name in before_up else slow[name] for name in chosen}


def _starts(instance: Instance) -> Iterator[dict[str, Choice]]:
    """Yield plans to start from: as slow as possible, and all fast with ever more of the largest tables slow."""
    yield _first_plan(instance)
    fast = {n: next((c for c in found if c.home == FAST), found[0]) for n, found in instance.choices.items()}
    slow = {n: next((c for c in found if c.home in {BOTH, SLOW}), found[0]) for n, found in instance.choices.items()}
    yield fast
    for name in sorted(fast, key=lambda n: -instance.bytes[n][instance.choices[n].index(fast[n])]):
        after = {second for first, second in instance.before if first == name}  # they cannot be fast any more
        fast = {n: slow[n] if n == name or n in after else choice for n, choice in fast.items()}
        yield fast


def simple_plans(program: Program, instance: Instance) -> dict[str, dict[str, Choice]]:
    """Return the plans that people make by hand, those that are possible: names as in the documentation."""
    slow = {name: next((c for c in found if c.home == SLOW), found[0]) for name, found in instance.choices.items()}
    fast = {name: next((c for c in found if c.home == FAST), found[0]) for name, found in instance.choices.items()}
    config = {name: next((c for c in found if c.home == BOTH), slow[name]) for name, found in instance.choices.items()}
    split = {name: [c for c in found if c.home == SPLIT] for name, found in instance.choices.items()}
    plans = {"all slow": slow, "all fast": fast}
    plans["by traffic"] = {name: split[name][0] if split[name] else config[name] for name in slow}
    plans["first packet, then cached"] = {name: split[name][-1] if split[name] else config[name] for name in slow}
    state = {name: fast[name] if program.tables[name].storage == "array" else slow[name] for name in slow}
    plans["by state"] = state
    return {name: plan for name, plan in plans.items() if not why_illegal(program, placement_of(plan))}
