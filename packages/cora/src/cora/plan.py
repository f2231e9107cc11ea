"""Plans: which table lives where. CP-SAT, an exhaustive search as its slow twin, and a greedy one for re-planning.

All three minimise the same cost: slow-tier ns per packet, plus a small weight on fast-tier ns. They read the same
`Instance`: the trie of packet classes with the cost of every operation under every choice. A packet class is a walk
down the trie. It is fast until the first node whose table does not hold its key, and slow from there on.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
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


@dataclass(frozen=True)
class Instance:
    """Everything a search needs, and everything needed to check its answer.

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

    @cached_property
    def prices(self) -> Prices:
        """Costs of plans; made once."""
        return Prices(self)

    def cost(self, chosen: dict[str, Choice]) -> Cost:
        """Return what a plan costs."""
        fast, slow, cross = (float(one[0]) for one in self.prices.evaluate(self.prices.row(chosen)))
        return Cost(slow + self.weight_of_fast_ns * fast, fast, slow, cross)

    def broken_rule(self, chosen: dict[str, Choice]) -> str:
        """Return which limit or order a plan breaks, or ""."""
        plan = self.prices.row(chosen)
        fast, slow, _ = self.prices.evaluate(plan)
        return next((words for words, plans in self.prices.broken(plan, fast, slow).items() if plans[0]), "")

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
        weight_fast: Weight of a fast-tier ns beside a slow-tier one.
        homes: Settled tables, each TABLE=HOME[:ENTRIES].
    """

    program: Program
    profile: Profile
    costs: Costs
    limits: Limits
    cores: tuple[float, float] = (1.0, 1.0)
    rate_per_s: float = 0.0
    weight_fast: float = 0.1
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
            weight_of_fast_ns=self.weight_fast,
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


class Prices:
    """Costs of an instance's plans, many at once. A plan is a row of choice numbers: int [plans, tables].

    Args:
        instance: The search problem.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance, self.names = instance, list(instance.choices)
        nodes, width = instance.nodes, max((len(found) for found in instance.choices.values()), default=1)
        table = {name: number for number, name in enumerate(self.names)}
        self.table = np.array([table[node.table] for node in nodes], dtype=int)
        self.parent = np.array([node.parent for node in nodes], dtype=int)
        self.share = np.array([node.share for node in nodes])
        self.slow = np.array([node.share * node.slow_ns for node in nodes])
        self.holds = np.zeros((len(nodes), width), dtype=bool)
        self.fast = np.zeros((len(nodes), width))
        depth: list[int] = []
        for at, node in enumerate(nodes):
            depth.append(depth[node.parent] + 1 if node.parent >= 0 else 0)
            for number, choice in enumerate(instance.choices[node.table]):
                self.holds[at, number] = choice.holds(node.rank_bracket)
                self.fast[at, number] = node.share * node.fast_part(choice)
        levels = np.array(depth, dtype=int)
        self.levels = [np.flatnonzero(levels == level) for level in range(max(depth, default=-1) + 1)]

        def filled(value: Callable[[str, int, Choice], float]) -> np.ndarray:
            out = np.zeros((len(self.names), width))
            for name, found in instance.choices.items():
                for number, choice in enumerate(found):
                    out[table[name], number] = value(name, number, choice)
            return out

        self.bytes = filled(lambda name, number, _: instance.fast_bytes[name][number])
        self.entries = filled(lambda name, number, _: instance.entries[name][number])
        self.code = filled(lambda name, _, choice: instance.instructions[name] * (choice.home != SLOW))
        self.is_fast = filled(lambda *one: one[2].home == FAST) > 0
        self.crosses = filled(lambda *one: one[2].home in {SLOW, SPLIT}) > 0
        self.first = np.array([table[one] for one, _ in instance.no_fast_after], dtype=int)
        self.second = np.array([table[one] for _, one in instance.no_fast_after], dtype=int)
        self.exists = filled(lambda *_: 1) > 0
        self.earlier = np.zeros((len(self.names), len(self.names)), dtype=bool)
        self.earlier[self.second, self.first] = True
        for one in range(len(self.names)):  # what comes before a table that comes before
            self.earlier |= self.earlier[:, [one]] & self.earlier[one]
        self.stays = np.array([table[one] for one in instance.never_slow], dtype=int)

    def row(self, chosen: dict[str, Choice]) -> np.ndarray:
        """Return a plan as a row: int [1, tables]."""
        return np.array([[self.instance.choices[name].index(chosen[name]) for name in self.names]], dtype=int)

    def choices(self, row: np.ndarray) -> dict[str, Choice]:
        """Return the plan that a row stands for."""
        return {
            name: self.instance.choices[name][number] for name, number in zip(self.names, row.tolist(), strict=True)
        }

    def evaluate(self, plans: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return fast ns, slow ns and the share of crossing packets of each plan: float [plans] each."""
        nodes, taken = np.arange(len(self.table)), plans[:, self.table]
        crosses_here = ~self.holds[nodes, taken]
        slow = np.zeros((len(plans), len(nodes) + 1), dtype=bool)  # the last column stands for "no parent"
        for level in self.levels:
            slow[:, level] = slow[:, self.parent[level]] | crosses_here[:, level]
        before, slow = slow[:, self.parent], slow[:, :-1]
        cross = (slow & ~before) @ self.share
        fast = self.instance.base_fast_ns + np.where(before, 0.0, self.fast[nodes, taken]).sum(axis=1)
        fast += cross * self.instance.crossing_fast_ns
        return fast, slow @ self.slow + cross * self.instance.crossing_slow_ns, cross

    def broken(self, plans: np.ndarray, fast: np.ndarray, slow: np.ndarray) -> dict[str, np.ndarray]:
        """Return each rule in words, with the plans that break it: bool [plans]."""
        one, limits, tables = self.instance, self.instance.limits, np.arange(len(self.names))
        crosses = self.crosses[tables, plans]
        is_fast = self.is_fast[tables, plans]
        code = self.code[tables, plans].sum(axis=1) + one.instructions[""]
        return {
            "a table is fast, but packets come to it after one where they may have crossed": (
                is_fast[:, self.second] & crosses[:, self.first]
            ).any(axis=1),
            "packets may go up to the stack after a table that is not fast": crosses[:, self.stays].any(axis=1),
            f"the tables take more than {limits.bytes:,} bytes of the fast tier": (
                self.bytes[tables, plans].sum(axis=1) > limits.bytes
            ),
            f"the tables have more than {limits.entries:,} entries in the fast tier": (
                self.entries[tables, plans].sum(axis=1) > limits.entries
            ),
            f"the fast tier takes more than {limits.instructions:,} instructions": code > limits.instructions,
            f"the fast tier has {one.limit_fast_ns:.0f} ns a packet at this rate and needs more": (
                fast > one.limit_fast_ns
            ),
            f"the slow tier has {one.limit_slow_ns:.0f} ns a packet at this rate and needs more": (
                slow > one.limit_slow_ns
            ),
        }

    def price(self, plans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the searches minimise, and the same but infinite for plans that break a rule: float [plans]."""
        fast, slow, _ = self.evaluate(plans)
        cost = np.asarray(slow + self.instance.weight_of_fast_ns * fast)
        broken = np.any(list(self.broken(plans, fast, slow).values()), axis=0)
        return cost, np.asarray(np.where(broken, np.inf, cost))


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
        raise BadInput(f"unknown engine {engine!r}; use exact, exhaustive or greedy")
    chosen = _without_idle_splits(instance, chosen)
    seconds = time.perf_counter() - begin
    return Plan(chosen, instance.cost(chosen), engine, seconds, optimal)


def _without_idle_splits(instance: Instance, chosen: dict[str, Choice]) -> dict[str, Choice]:
    """Return a plan of the same cost without splits that save nothing.

    Packets that cross before they come to such a table would pull each key down again that was moved up.
    """
    used = {node.table for node in instance.nodes}
    for name, choice in chosen.items():
        slow = next((one for one in instance.choices[name] if one.home == SLOW), choice)
        if choice.home == SPLIT and name in used and slow != choice:
            other = {**chosen, name: slow}
            same = instance.cost(other).cost_ns <= instance.cost(chosen).cost_ns + 1e-6
            chosen = other if same and not instance.broken_rule(other) else chosen
    return chosen


def _no_plan(instance: Instance) -> NoPlan:
    slow = {name: found[0] if found[0].home == SLOW else found[-1] for name, found in instance.choices.items()}
    reason = instance.broken_rule(slow) or "the limits exclude each other"
    return NoPlan(f"no plan meets the limits; with every table slow, {reason}. Lower --rate or give more cores")


def _exhaustive(instance: Instance) -> dict[str, Choice]:
    sizes = [len(instance.choices[name]) for name in instance.prices.names]
    count = math.prod(sizes)
    if count > MOST_PLANS:
        raise BadInput(f"{count:,} plans are too many for an exhaustive search (at most {MOST_PLANS:,}); use exact")
    plans = np.array(np.unravel_index(np.arange(count), sizes)).T
    prices = np.concatenate([instance.prices.price(part)[1] for part in np.array_split(plans, -(-count // 2048))])
    if not np.isfinite(prices).any():
        raise _no_plan(instance)
    return instance.prices.choices(plans[prices.argmin()])


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

    for first, second in instance.no_fast_after:
        for fast in those(second, (FAST,)):
            model.add(sum(those(first, (SLOW, SPLIT))) == 0).only_enforce_if(fast)
    for name in instance.never_slow:
        model.add(sum(those(name, (SLOW, SPLIT))) == 0)
    model.add(sum(instance.fast_bytes[n][i] * var for (n, i), var in x.items()) <= instance.limits.bytes)
    model.add(sum(instance.entries[n][i] * var for (n, i), var in x.items()) <= instance.limits.entries)
    inside = [instance.instructions[n] * var for n in instance.choices for var in those(n, (FAST, SPLIT, BOTH))]
    model.add(sum(inside) + instance.instructions[""] <= instance.limits.instructions)
    fast, slow = _solver_costs(instance, model, x)
    scaled = int(instance.weight_of_fast_ns * 1000)
    model.add(sum(fast) + int(instance.base_fast_ns * SCALE) <= int(min(instance.limit_fast_ns, 1e9) * SCALE))
    model.add(sum(slow) <= int(min(instance.limit_slow_ns, 1e9) * SCALE))
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
        crossing = [x[(node.table, i)] for i, one in enumerate(found) if not one.holds(node.rank_bracket)]
        parent = variables[node.parent] if node.parent >= 0 else 0
        here = model.new_bool_var(f"slow{number}")
        model.add(here >= parent)
        model.add(here >= sum(crossing))
        model.add(here <= parent + sum(crossing))
        variables.append(here)
        slow.append(milli(node.share, node.slow_ns) * here)
        slow.append(milli(node.share, instance.crossing_slow_ns) * (here - parent))
        fast.append(milli(node.share, instance.crossing_fast_ns) * (here - parent))
        for i, one in enumerate(found):
            stays = one.holds(node.rank_bracket)
            if not milli(node.share, node.fast_part(one)):
                continue
            taken = model.new_bool_var("")
            # The operation runs in the fast tier where the table is so and packets have not crossed before.
            model.add(taken >= x[(node.table, i)] - (here if stays else parent))
            fast.append(milli(node.share, node.fast_part(one)) * taken)
    return fast, slow


#: Seconds of CPU after which the greedy search takes the best plan that it has.
GREEDY_S = 0.008


def _greedy(instance: Instance, start: dict[str, Choice] | None) -> dict[str, Choice]:
    """Climb from the plan that is given, or from all fast made to fit; from all slow where that leads nowhere."""
    deadline, prices = time.thread_time() + GREEDY_S, instance.prices
    stays = np.isin(np.arange(len(prices.names)), prices.stays) | prices.earlier[prices.stays].any(axis=0)
    slow = np.where(stays, prices.is_fast.argmax(axis=1), prices.crosses.argmax(axis=1))
    for begin in (prices.row(start)[0] if start else _shrunk(prices, deadline), slow):
        plan = _climb(prices, begin, deadline)
        if np.isfinite(prices.price(plan[None])[1][0]):
            return prices.choices(plan)
    raise _no_plan(instance)


def _climb(prices: Prices, plan: np.ndarray, deadline: float) -> np.ndarray:
    """Change one table at a time, or a run of the best changes, or make room for one, until nothing saves any more."""
    (cost,), (price,) = prices.price(plan[None])
    while time.thread_time() < deadline:
        tried, freed = _changes(prices, plan)
        if not len(tried):
            break
        costs, after = prices.price(tried)
        order = np.argsort(after)
        run = [plan]
        for index in order[after[order] < price][: len(plan)]:  # the best changes on top of each other
            run.append(np.where(tried[index] != plan, tried[index], run[-1]))
        room = np.argsort(np.where(freed > 0, (costs - cost) / np.maximum(freed, 1), np.inf))[:10]
        swaps = [np.where(tried[i] != plan, tried[i], tried[j]) for i in np.argsort(costs)[:10] for j in room]
        candidates = np.array([tried[order[0]], *run, *swaps])
        costs, found = prices.price(candidates)
        if not found.min() < price - 1e-9:
            break
        plan, cost, price = candidates[found.argmin()], costs[found.argmin()], found.min()
    return plan


def _changes(prices: Prices, plan: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return plans that differ in one table, others following where the order asks for it, and the bytes they free."""
    tables = np.arange(len(plan))
    table, number = np.nonzero(prices.exists & (np.arange(prices.exists.shape[1]) != plan[:, None]))
    found = np.repeat(plan[None], len(table), axis=0)
    found[np.arange(len(table)), table] = number
    before = prices.earlier[table] & prices.crosses[tables, plan] & prices.is_fast[table, number][:, None]
    after = prices.earlier.T[table] & prices.is_fast[tables, plan] & prices.crosses[table, number][:, None]
    found = np.where(before, prices.is_fast.argmax(axis=1), np.where(after, prices.crosses.argmax(axis=1), found))
    return found, prices.bytes[tables, plan].sum() - prices.bytes[tables, found].sum(axis=1)


def _shrunk(prices: Prices, deadline: float) -> Any:
    """Return a plan from all fast, by taking out what costs least for each byte until the tables fit: int [tables]."""
    plan = prices.is_fast.argmax(axis=1)
    left = prices.bytes[np.arange(len(plan)), plan].sum() - prices.instance.limits.bytes
    while left > 0 and time.thread_time() < deadline:
        tried, freed = _changes(prices, plan)
        costs, cost = prices.price(tried)[0], prices.price(plan[None])[0]
        best = np.where(freed > 0, (costs - cost) / np.maximum(freed, 1), np.inf).argmin()
        if freed[best] <= 0:
            break
        plan, left = tried[best], left - freed[best]
    return plan


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
