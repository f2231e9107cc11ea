"""Plans: which table lives where. CP-SAT, an exhaustive search as its slow twin, and a greedy one for re-planning.

All three minimise the same cost: slow-tier ns per packet, plus a small weight on fast-tier ns. They read the same
`Instance`: the trie of packet classes with the cost of every operation under every choice. A packet class is a walk
down the trie. It is fast until the first node whose table does not hold its key, and slow from there on.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from cora.errors import BadInput, NoPlan
from cora.machine import Costs, Limits
from cora.model import MISS, Choice, choices, instructions, placement_of, step_costs, wakes_per_packet
from cora.placement import BOTH, FAST, SLOW, SPLIT, fast_bytes, why_illegal
from cora.profile import SPLITS, Profile
from cora.program import Access, Program, Verdict, successors

#: Largest number of plans that the exhaustive search tries: ten tables with three choices each.
MOST_PLANS = 59_049
SCALE = 1000  # the solver counts in thousandths of a ns
#: Additional cost of a split table, ns a packet. It only decides between plans of equal cost.
SPLIT_NS = 0.001


class Node(NamedTuple):
    """An operation that a share of the packets comes to, after that of the parent node.

    Attributes:
        parent: Index of the parent node, -1 at the root.
        table: Table of the operation.
        rank_bracket: Rank bracket of the key.
        share: Share of all packets, 0-1.
        fast_ns_by_home: ns of the operation and the steps after it in the fast tier, by home.
        slow_ns: The same in the slow tier.
    """

    parent: int
    table: str
    rank_bracket: int
    share: float
    fast_ns_by_home: dict[str, float]
    slow_ns: float

    def fast_part(self, choice: Choice) -> float:
        """Return the ns of the operation in the fast tier, for packets that have not crossed before."""
        if choice.holds(self.rank_bracket):
            return self.fast_ns_by_home[choice.home]
        return self.fast_ns_by_home[MISS] if choice.home == SPLIT else 0.0


@dataclass(eq=False)
class Instance:
    """Everything a search needs, and everything needed to check its answer. Methods price many plans at once.

    Attributes:
        choices: Choices of each table.
        fast_bytes: Fast-tier bytes by table and choice number.
        nodes: The trie; a parent comes before its children.
        base_fast_ns: Fast-tier ns before the first operation.
        crossing_fast_ns: What crossing costs the fast tier.
        crossing_slow_ns: What crossing costs the slow tier.
        no_fast_after: Pairs of tables: packets may come to the second after the first.
        never_slow: Tables after which packets may go up to the stack, so that they cannot cross there.
        limits: Limits of the fast tier.
        entries: Entries by table and choice number.
        instructions: Instructions by table while it is in the fast tier, and those of the rest ("").
        limit_fast_ns: Most fast-tier ns per packet at the asked rate.
        limit_slow_ns: Most slow-tier ns per packet at the asked rate.
        weight_of_fast_ns: Weight of a fast-tier ns beside a slow-tier one.
    """

    choices: dict[str, list[Choice]]
    fast_bytes: dict[str, list[int]]
    entries: dict[str, list[int]]
    nodes: list[Node]
    base_fast_ns: float
    crossing_fast_ns: float
    crossing_slow_ns: float
    no_fast_after: list[tuple[str, str]]
    never_slow: list[str]
    limits: Limits
    instructions: dict[str, int]
    limit_fast_ns: float
    limit_slow_ns: float
    weight_of_fast_ns: float

    def __post_init__(self) -> None:
        """Lay the problem out in arrays: [nodes], [nodes, choices] or [tables, choices]."""
        self.names, nodes = list(self.choices), self.nodes
        width = max(map(len, self.choices.values()), default=1)
        table = {name: number for number, name in enumerate(self.names)}
        self.table = np.array([table[node.table] for node in nodes], dtype=int)
        self.parent = np.array([node.parent for node in nodes], dtype=int)
        self.share = np.array([node.share for node in nodes])
        self.slow_ns = np.array([node.share * node.slow_ns for node in nodes])
        self.holds, self.fast_ns = np.zeros((len(nodes), width), dtype=bool), np.zeros((len(nodes), width))
        depth: list[int] = []
        for at, node in enumerate(nodes):
            depth.append(depth[node.parent] + 1 if node.parent >= 0 else 0)
            for number, choice in enumerate(self.choices[node.table]):
                self.holds[at, number] = choice.holds(node.rank_bracket)
                self.fast_ns[at, number] = node.share * node.fast_part(choice)
        self.levels = [np.flatnonzero(np.equal(depth, level)) for level in range(max(depth, default=-1) + 1)]

        def filled(value: Callable[[str, int, Choice], float]) -> np.ndarray:
            out = np.zeros((len(self.names), width))
            for name, found in self.choices.items():
                for number, choice in enumerate(found):
                    out[table[name], number] = value(name, number, choice)
            return out

        self.exists = filled(lambda *_: 1) > 0
        self.bytes = filled(lambda name, number, _: self.fast_bytes[name][number])
        self.rooms = filled(lambda name, number, _: self.entries[name][number])
        self.code = filled(lambda name, _, choice: self.instructions[name] * (choice.home != SLOW))
        self.is_fast = filled(lambda *one: one[2].home == FAST) > 0
        self.is_split = filled(lambda *one: one[2].home == SPLIT)
        self.crosses = filled(lambda *one: one[2].home in {SLOW, SPLIT}) > 0
        self.first = np.array([table[one] for one, _ in self.no_fast_after], dtype=int)
        self.second = np.array([table[one] for _, one in self.no_fast_after], dtype=int)
        self.stays = np.array([table[one] for one in self.never_slow], dtype=int)
        self.earlier = np.zeros((len(self.names), len(self.names)), dtype=bool)
        self.earlier[self.second, self.first] = True
        for number in range(len(self.names)):  # what comes before a table that comes before
            self.earlier |= self.earlier[:, [number]] & self.earlier[number]

    def row(self, chosen: dict[str, Choice]) -> np.ndarray:
        """Return a plan as a row of choice numbers: int [1, tables]."""
        return np.array([[self.choices[name].index(chosen[name]) for name in self.names]], dtype=int)

    def plan(self, row: np.ndarray) -> dict[str, Choice]:
        """Return the plan that a row stands for: int [tables]."""
        return {name: self.choices[name][number] for name, number in zip(self.names, row.tolist(), strict=True)}

    def evaluate(self, plans: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return fast ns, slow ns and the share of crossing packets of each plan: float [plans] each."""
        nodes, taken = np.arange(len(self.table)), plans[:, self.table]
        crosses_here = ~self.holds[nodes, taken]
        slow = np.zeros((len(plans), len(nodes) + 1), dtype=bool)  # the last column stands for "no parent"
        for level in self.levels:
            slow[:, level] = slow[:, self.parent[level]] | crosses_here[:, level]
        before, slow = slow[:, self.parent], slow[:, :-1]
        cross = (slow & ~before) @ self.share
        fast = self.base_fast_ns + np.where(before, 0.0, self.fast_ns[nodes, taken]).sum(axis=1)
        fast += cross * self.crossing_fast_ns
        return fast, slow @ self.slow_ns + cross * self.crossing_slow_ns, cross

    def broken(self, plans: np.ndarray, fast: np.ndarray, slow: np.ndarray) -> dict[str, np.ndarray]:
        """Return each rule in words, with the plans that break it: bool [plans]."""
        limits, at = self.limits, (np.arange(len(self.names)), plans)
        crosses, is_fast = self.crosses[at], self.is_fast[at]
        size, rooms, code = (part[at].sum(axis=1) for part in (self.bytes, self.rooms, self.code))
        disordered = (is_fast[:, self.second] & crosses[:, self.first]).any(axis=1)
        needs = "ns a packet at this rate and needs more"
        return {
            "a table is fast, but packets come to it after one where they may have crossed": disordered,
            "packets may go up to the stack after a table that is not fast": crosses[:, self.stays].any(axis=1),
            f"the tables take more than {limits.bytes:,} bytes of the fast tier": size > limits.bytes,
            f"the tables have more than {limits.entries:,} entries in the fast tier": rooms > limits.entries,
            f"the fast tier takes more than {limits.instructions:,} instructions": code
            > limits.instructions - self.instructions[""],
            f"the fast tier has {self.limit_fast_ns:.0f} {needs}": fast > self.limit_fast_ns,
            f"the slow tier has {self.limit_slow_ns:.0f} {needs}": slow > self.limit_slow_ns,
        }

    def price(self, plans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the searches minimise, and the same but infinite for plans that break a rule: float [plans].

        Of plans that cost the same, those with fewer splits are cheaper: packets that cross before they come to a split
        table would pull each key down again that was moved up.
        """
        fast, slow, _ = self.evaluate(plans)
        splits = self.is_split[np.arange(len(self.names)), plans].sum(axis=1)
        cost = np.asarray(slow + self.weight_of_fast_ns * fast + SPLIT_NS * splits)
        broken = np.any(list(self.broken(plans, fast, slow).values()), axis=0)
        return cost, np.asarray(np.where(broken, np.inf, cost))

    def cost(self, chosen: dict[str, Choice]) -> Cost:
        """Return what a plan costs."""
        fast, slow, cross = (float(one[0]) for one in self.evaluate(self.row(chosen)))
        return Cost(slow + self.weight_of_fast_ns * fast, fast, slow, cross)

    def broken_rule(self, chosen: dict[str, Choice]) -> str:
        """Return which limit or order a plan breaks, or ""."""
        plan = self.row(chosen)
        fast, slow, _ = self.evaluate(plan)
        return next((words for words, plans in self.broken(plan, fast, slow).items() if plans[0]), "")

    def to_json(self) -> dict[str, Any]:
        """Return the instance with one record for each option of a table, for others to check a plan."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        parts = [data.pop(name) for name in ("choices", "fast_bytes", "entries")]
        data["options"] = {
            name: [
                {"home": home, "fast_entries": room, "fast_bytes": size, "entries": entries}
                for (home, room), size, entries in zip(*(part[name] for part in parts), strict=True)
            ]
            for name in self.choices
        }
        data["nodes"] = [node._asdict() for node in self.nodes]
        return {**data, "split_sizes_entries": SPLITS}


class Cost(NamedTuple):
    """Costs of a plan per packet: what the searches minimise, ns in each tier, and the share that crosses (0-1)."""

    cost_ns: float
    fast_ns: float
    slow_ns: float
    crossing_share: float


class Plan(NamedTuple):
    """A search's answer: the choices, their cost, seconds of search, and True if no plan is cheaper."""

    chosen: dict[str, Choice]
    cost: Cost
    engine: str
    seconds: float
    optimal: bool


@dataclass(frozen=True)
class Problem:
    """A planning problem: a program under a profile on a machine.

    Attributes:
        program: The network function.
        profile: The traffic.
        costs: The machine.
        limits: What the fast tier can hold.
        cores: Cores of the fast and the slow tier.
        rate_per_s: Packets a second that both tiers must take; 0 for no such limit.
        homes: Settled tables, each TABLE=HOME[:ENTRIES].
    """

    program: Program
    profile: Profile
    costs: Costs
    limits: Limits
    cores: tuple[float, float] = (1.0, 1.0)
    rate_per_s: float = 0.0
    homes: tuple[str, ...] = ()

    def _choices(self) -> dict[str, list[Choice]]:
        tables = self.program.tables
        found = {name: choices(self.program, table, self.limits) for name, table in tables.items()}
        for text in self.homes:
            settled = re.fullmatch(r"(\w+)=(\w+)(?::(\d+))?", text)
            if not settled or settled[1] not in tables:
                raise BadInput(f"--home {text}: write TABLE=HOME or TABLE=split:ENTRIES; tables: {', '.join(tables)}")
            name, home, room = settled.groups()
            kept = [c for c in found[name] if c.home == home and (not room or c.entries == int(room))]
            if not kept:
                known = ", ".join(f"{c.home}:{c.entries}" if c.entries else c.home for c in found[name])
                raise BadInput(f"--home {text}: table {name} can be {known}")
            found[name] = kept
        return found

    @cached_property
    def instance(self) -> Instance:
        """The search problem."""
        program, costs = self.program, self.costs
        options, rate = self._choices(), self.rate_per_s or self.profile.rate_per_s
        base, nodes = _trie(program, self.profile, costs)
        bare = instructions(program, ())
        pairs, up = order_of_tables(program)
        others = dict.fromkeys(program.tables, Choice(SLOW))
        budget = 0.9 * 1e9 / self.rate_per_s if self.rate_per_s else 1e12
        return Instance(
            choices=options,
            fast_bytes={
                name: [fast_bytes(program, placement_of({**others, name: one}), program.tables[name]) for one in found]
                for name, found in options.items()
            },
            entries={
                name: [0 if one.home == SLOW else one.entries or program.tables[name].entries for one in found]
                for name, found in options.items()
            },
            nodes=nodes,
            base_fast_ns=base,
            crossing_fast_ns=costs.hand_over,
            crossing_slow_ns=costs.tiers["slow"].base
            + costs.network.get("slow", 0.0)
            + costs.network.get("wake", 0.0) * wakes_per_packet(rate),
            no_fast_after=pairs,
            never_slow=up,
            limits=self.limits,
            instructions={"": bare, **{name: instructions(program, (name,)) - bare for name in options}},
            limit_fast_ns=budget * self.cores[0],
            limit_slow_ns=budget * self.cores[1],
            weight_of_fast_ns=0.1,
        )


def order_of_tables(program: Program) -> tuple[list[tuple[str, str]], list[str]]:
    """Return pairs of tables of which a packet may use the second after the first, and tables before an `up`."""
    seen: list[set[str]] = [set() for _ in program.steps]
    pairs: set[tuple[str, str]] = set()
    up: set[str] = set()
    for at, step in enumerate(program.steps):
        after = seen[at]
        if isinstance(step, Access):
            pairs |= {(first, step.table) for first in seen[at]}
            after = after | {step.table}
        elif isinstance(step, Verdict) and step.kind == "up":
            up |= seen[at]
        for target in successors(step):
            seen[target] |= after
    return sorted(pairs), sorted(up)


def _trie(program: Program, profile: Profile, costs: Costs) -> tuple[float, list[Node]]:
    """Return fast-tier ns before the first operation, and the trie of operations that packets come to."""
    known, nodes = step_costs(program, profile, costs), list[Node]()
    index: dict[tuple[int, int, int, tuple[int, ...]], int] = {}
    base = costs.tiers["fast"].base + (costs.tiers["fast"].steps["now"] if program.uses_time else 0.0)
    for one in profile.classes:
        at = [i for i, number in enumerate(one.steps) if isinstance(program.steps[number], Access)]
        base += one.weight * sum(known.fast[i] for i in one.steps[: at[0] if at else None])
        parent = -1
        for first, end, bracket in zip(at, [*at, len(one.steps)][1:], one.brackets, strict=True):
            number, tail = one.steps[first], one.steps[first + 1 : end]
            step = program.steps[number]
            assert isinstance(step, Access)
            key = (parent, number, bracket, tail)
            if key not in index:
                index[key] = len(nodes)
                rest = sum(known.fast[i] for i in tail)
                by_home = {home: known.access[(number, home)] + rest for home in (FAST, SPLIT, BOTH)}
                by_home[MISS] = known.access[(number, MISS)]
                slow = known.slow[number] + sum(known.slow[i] for i in tail)
                nodes.append(Node(parent, step.table, bracket, 0.0, by_home, slow))
            parent = index[key]
            nodes[parent] = nodes[parent]._replace(share=nodes[parent].share + one.weight)
    return base + costs.network.get("fast", 0.0), nodes


def search(instance: Instance, engine: str = "exact", limit_s: float = 10.0) -> Plan:
    """Return the cheapest plan that an engine finds; the exact one stops after `limit_s` seconds.

    Raises:
        NoPlan: No plan meets the limits.
    """
    if engine == "exact":
        import ortools.sat.python.cp_model  # noqa: F401 - loading the solver is no part of the search

    begin = time.perf_counter()
    engines: dict[str, Callable[[], tuple[np.ndarray | None, bool]]] = {
        "exact": lambda: _exact(instance, limit_s),
        "exhaustive": lambda: (_exhaustive(instance), True),
        "greedy": lambda: (_greedy(instance), False),
    }
    if engine not in engines:
        raise BadInput(f"unknown engine {engine!r}; use {', '.join(engines)}")
    row, optimal = engines[engine]()
    if row is None:
        slow = {name: found[0] if found[0].home == SLOW else found[-1] for name, found in instance.choices.items()}
        reason = instance.broken_rule(slow) or "the limits exclude each other"
        raise NoPlan(f"no plan meets the limits; with every table slow, {reason}. Lower --rate or give more cores")
    chosen = instance.plan(row)
    return Plan(chosen, instance.cost(chosen), engine, time.perf_counter() - begin, optimal)


def _exhaustive(instance: Instance) -> np.ndarray | None:
    sizes = [len(found) for found in instance.choices.values()]
    count = math.prod(sizes)
    if count > MOST_PLANS:
        raise BadInput(f"{count:,} plans are too many for an exhaustive search (at most {MOST_PLANS:,}); use exact")
    plans = np.array(np.unravel_index(np.arange(count), sizes)).T
    prices = np.concatenate([instance.price(part)[1] for part in np.array_split(plans, -(-count // 2048))])
    return plans[prices.argmin()] if np.isfinite(prices).any() else None


def _exact(instance: Instance, limit_s: float) -> tuple[np.ndarray | None, bool]:
    """Solve with a variable for each table's choice, and one for each node: packets are slow there."""
    from ortools.sat.python import cp_model

    one, model = instance, cp_model.CpModel()
    numbers = [np.flatnonzero(row).tolist() for row in one.exists]
    x = {(table, i): model.new_bool_var("") for table, found in enumerate(numbers) for i in found}

    def total(weights: np.ndarray, table: int | None = None) -> Any:
        return sum(int(weights[at]) * var for at, var in x.items() if table in {None, at[0]})

    for table, found in enumerate(numbers):
        model.add_exactly_one(x[(table, i)] for i in found)
    for first, second in zip(one.first, one.second, strict=True):
        model.add(total(one.crosses, first) + total(one.is_fast, second) <= 1)
    for table in one.stays:
        model.add(total(one.crosses, table) == 0)
    model.add(total(one.bytes) <= one.limits.bytes)
    model.add(total(one.rooms) <= one.limits.entries)
    model.add(total(one.code) + one.instructions[""] <= one.limits.instructions)
    fast, slow, here = [int(one.base_fast_ns * SCALE)], list[Any](), list[Any]()
    for at, (table, parent) in enumerate(zip(one.table.tolist(), one.parent.tolist(), strict=True)):
        before = here[parent] if parent >= 0 else 0
        crossing = sum(x[(table, i)] for i in numbers[table] if not one.holds[at, i])
        here.append(model.new_bool_var(""))
        model.add(here[at] >= before)
        model.add(here[at] >= crossing)
        model.add(here[at] <= before + crossing)
        slow.append(round(one.slow_ns[at] * SCALE) * here[at])
        slow.append(round(one.share[at] * one.crossing_slow_ns * SCALE) * (here[at] - before))
        fast.append(round(one.share[at] * one.crossing_fast_ns * SCALE) * (here[at] - before))
        for i in numbers[table]:
            if ns := round(one.fast_ns[at, i] * SCALE):
                # The operation runs in the fast tier where the table is so and packets have not crossed before.
                taken = model.new_bool_var("")
                model.add(taken >= x[(table, i)] - (here[at] if one.holds[at, i] else before))
                fast.append(ns * taken)
    model.add(sum(fast) <= int(min(one.limit_fast_ns, 1e9) * SCALE))
    model.add(sum(slow) <= int(min(one.limit_slow_ns, 1e9) * SCALE))
    model.minimize(
        1000 * sum(slow)
        + int(one.weight_of_fast_ns * 1000) * sum(fast)
        + int(SPLIT_NS * SCALE * 1000) * total(one.is_split)
    )
    if (hint := _greedy(instance)) is not None:  # it gives up sooner than the solver
        for (table, i), var in x.items():
            model.add_hint(var, bool(hint[table] == i))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return None, False
    row = [next(i for i in found if solver.boolean_value(x[(table, i)])) for table, found in enumerate(numbers)]
    return np.array(row), status == cp_model.OPTIMAL


#: Seconds of CPU after which the greedy search takes the best plan that it has.
GREEDY_S = 0.008


def _greedy(instance: Instance) -> np.ndarray | None:
    """Climb from all fast made to fit; from all slow where that leads nowhere."""
    deadline = time.thread_time() + GREEDY_S
    stays = np.isin(np.arange(len(instance.names)), instance.stays) | instance.earlier[instance.stays].any(axis=0)
    slow = np.where(stays, instance.is_fast.argmax(axis=1), instance.crosses.argmax(axis=1))
    for begin in (_shrunk(instance, deadline), slow):
        plan = _climb(instance, begin, deadline)
        if np.isfinite(instance.price(plan[None])[1][0]):
            return plan
    return None


def _climb(instance: Instance, plan: np.ndarray, deadline: float) -> np.ndarray:
    """Change one table at a time, or a run of the best changes, or make room for one, until nothing saves any more."""
    (cost,), (price,) = instance.price(plan[None])
    while time.thread_time() < deadline:
        tried, freed = _changes(instance, plan)
        if not len(tried):
            break
        costs, after = instance.price(tried)
        order = np.argsort(after)
        run = [plan]
        for index in order[after[order] < price][: len(plan)]:  # the best changes on top of each other
            run.append(np.where(tried[index] != plan, tried[index], run[-1]))
        room = np.argsort(np.where(freed > 0, (costs - cost) / np.maximum(freed, 1), np.inf))[:10]
        swaps = [np.where(tried[i] != plan, tried[i], tried[j]) for i in np.argsort(costs)[:10] for j in room]
        candidates = np.array([tried[order[0]], *run, *swaps])
        costs, found = instance.price(candidates)
        if not found.min() < price - 1e-9:
            break
        plan, cost, price = candidates[found.argmin()], costs[found.argmin()], found.min()
    return plan


def _changes(instance: Instance, plan: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return plans that differ in one table, others following where the order asks for it, and the bytes they free."""
    tables = np.arange(len(plan))
    table, number = np.nonzero(instance.exists & (np.arange(instance.exists.shape[1]) != plan[:, None]))
    found = np.repeat(plan[None], len(table), axis=0)
    found[np.arange(len(table)), table] = number
    before = instance.earlier[table] & instance.crosses[tables, plan] & instance.is_fast[table, number][:, None]
    after = instance.earlier.T[table] & instance.is_fast[tables, plan] & instance.crosses[table, number][:, None]
    found = np.where(before, instance.is_fast.argmax(axis=1), np.where(after, instance.crosses.argmax(axis=1), found))
    return found, instance.bytes[tables, plan].sum() - instance.bytes[tables, found].sum(axis=1)


def _shrunk(instance: Instance, deadline: float) -> Any:
    """Return a plan from all fast, by taking out what costs least for each byte until the tables fit: int [tables]."""
    plan = instance.is_fast.argmax(axis=1)
    left = instance.bytes[np.arange(len(plan)), plan].sum() - instance.limits.bytes
    while left > 0 and time.thread_time() < deadline:
        tried, freed = _changes(instance, plan)
        costs, cost = instance.price(tried)[0], instance.price(plan[None])[0]
        best = np.where(freed > 0, (costs - cost) / np.maximum(freed, 1), np.inf).argmin()
        if freed[best] <= 0:
            break
        plan, left = tried[best], left - freed[best]
    return plan


def simple_plans(program: Program, instance: Instance) -> dict[str, dict[str, Choice]]:
    """Return the plans that people make by hand, those that are possible: names as in the documentation."""

    def pick(name: str, *homes: str, largest: bool = False) -> Choice:
        """Return the first of the homes that a table can have, with the smallest or largest room."""
        found = [choice for home in homes for choice in instance.choices[name] if choice.home == home]
        same = [choice for choice in found if choice.home == found[0].home] or instance.choices[name][:1]
        return same[-1] if largest else same[0]

    arrays = {name for name, table in program.tables.items() if table.storage == "array"}
    plans = {
        "all slow": {name: pick(name, SLOW) for name in instance.choices},
        "all fast": {name: pick(name, FAST) for name in instance.choices},
        "by traffic": {name: pick(name, SPLIT, BOTH, SLOW) for name in instance.choices},
        "first packet, then cached": {name: pick(name, SPLIT, BOTH, SLOW, largest=True) for name in instance.choices},
        "by state": {name: pick(name, FAST if name in arrays else SLOW) for name in instance.choices},
    }
    return {name: plan for name, plan in plans.items() if not why_illegal(program, placement_of(plan))}
