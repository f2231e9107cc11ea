"""The state-centric model: time per packet from the state that packets touch. Pure functions of profile and costs.

The time of a step does not depend on which packet takes it, but on the table operation: its kind, whether it hits, and
how large the working set of its keys is. A placement decides in which tier each class of packets runs each step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from msgspec import Struct

from cora.expressions import size
from cora.machine import Costs, Curve, Limits
from cora.placement import BOTH, FAST, SLOW, SPLIT, Placement, atomic, fast_bytes, locked, options
from cora.profile import SPLITS, Profile
from cora.program import Access, Assign, Branch, Parse, Program, Rewrite, Table, expressions

#: Instructions of an access, of a rewritten field, and of the code around the steps, read off compiled programs.
_ACCESS_INSTRUCTIONS, _REWRITE_INSTRUCTIONS, _FRAME_INSTRUCTIONS = 45, 40, 150


#: Stands for a home in costs: a split table's operation in the fast tier that finds no entry there.
MISS = "miss"


class Choice(NamedTuple):
    """A home of a table, with the room of its fast part if it is split."""

    home: str
    entries: int = 0

    def holds(self, bracket: int) -> bool:
        """Return True if an operation on a key of this rank bracket stays in the fast tier."""
        if self.home == SPLIT:
            return bracket < len(SPLITS) and SPLITS[bracket] <= self.entries
        return self.home != SLOW


def choices(program: Program, table: Table, limits: Limits) -> list[Choice]:
    """Return the homes of a table that the limits of the fast tier allow."""
    found = []
    size = table.key_layout.size + table.value_layout.size
    for home in options(program, table):
        if home == SLOW:
            found.append(Choice(SLOW))
        elif table.storage in limits.storages and size <= limits.entry_bytes:
            rooms = [room for room in SPLITS if room < table.entries] if home == SPLIT else [0]
            found += [Choice(home, room) for room in rooms]
    return found


def placement_of(chosen: dict[str, Choice]) -> Placement:
    """Return the placement that choices make."""
    homes = {name: choice.home for name, choice in chosen.items()}
    return Placement(homes, {name: one.entries for name, one in chosen.items() if one.home == SPLIT})


@dataclass(frozen=True)
class StepCosts:
    """Mean ns of each step in each tier under a profile, and of each table operation in the fast tier by home."""

    fast: dict[int, float]
    slow: dict[int, float]
    access: dict[tuple[int, str], float]


def operation(program: Program, step: Access, home: str, hit: bool) -> str:
    """Return which calibrated operation a step is in the fast tier, or in the slow one if the home is slow."""
    table = program.tables[step.table]
    if not hit:
        return "create" if step.create and table.storage in {"hash", "lru"} else "miss"
    if step.delete:
        return "delete"
    if home != SLOW and locked(program, table, home):
        return "write"
    if step.sets and home != SLOW and atomic(program, table):
        return "add"
    return "write" if step.sets else "read"


def _table_cost(program: Program, profile: Profile, costs: Costs, at: int, tier: str, home: str) -> float:
    step = program.steps[at]
    assert isinstance(step, Access)
    table, use = program.tables[step.table], profile.use(at)
    hits = use.hit_share if use and table.storage in {"hash", "lru"} else 1.0
    keys = float(max(1, len(table.preset))) if table.storage == "lpm" else use.working_set if use else 1.0
    return sum(
        share * _curve(costs, tier, table.storage, operation(program, step, home, hit)).at(keys)
        for hit, share in ((True, hits), (False, 1 - hits))
    )


def _curve(costs: Costs, tier: str, storage: str, name: str) -> Curve:
    """Return the curve of an operation, or of the nearest one that was calibrated."""
    nearest = {"create": "write", "delete": "write", "add": "write", "miss": "read", "write": "add", "read": "add"}
    names = [name]
    while names[-1] in nearest:
        names.append(nearest.pop(names[-1]))
    known = costs.tiers[tier].tables
    return next((known[f"{storage}.{one}"] for one in names if f"{storage}.{one}" in known), Curve((1.0,), (0.0,)))


def step_costs(program: Program, profile: Profile, costs: Costs) -> StepCosts:
    """Return what each step costs in each tier under a profile."""
    plain: dict[str, dict[int, float]] = {FAST: {}, SLOW: {}}
    access: dict[tuple[int, str], float] = {}
    for (tier, known), (at, step) in product(costs.tiers.items(), enumerate(program.steps)):
        ns = known.steps["op"] * sum(size(one) for one in expressions(step))
        if isinstance(step, Rewrite):
            ns += known.steps["rewrite"] * len(step.sets)
        elif isinstance(step, Parse | Assign):
            ns += known.steps["op"]
        elif isinstance(step, Branch):
            taken = profile.taken.get(at, 0.0)
            ns += known.steps["op"] + known.steps["mispredict"] * 2 * min(taken, 1 - taken)
        plain[tier][at] = ns
        if isinstance(step, Access):
            for home in (SLOW,) if tier == SLOW else (FAST, SPLIT, BOTH):
                access[(at, home)] = ns + _table_cost(program, profile, costs, at, tier, home)
            if tier == FAST:
                use, storage = profile.use(at), program.tables[step.table].storage
                access[(at, MISS)] = ns + _curve(costs, tier, storage, "miss").at(use.working_set if use else 1.0)
    return StepCosts(plain[FAST], {at: access.get((at, SLOW), ns) for at, ns in plain[SLOW].items()}, access)


#: Seconds in which the slow tier gathers packets after a wake-up (150 us of pause, and the kernel's timer slack of 50).
GATHER_S = 0.0002


def wakes_per_packet(crossings_per_s: float) -> float:
    """Return wake-ups of the slow tier per packet that crosses: each gathers what comes in `GATHER_S`."""
    return 1 / (1 + crossings_per_s * GATHER_S)


class Prediction(Struct, frozen=True):
    """The costs and limits of a placement, per packet of the profile.

    Attributes:
        fast_ns: Program time in the fast tier.
        slow_ns: Program time in the slow tier.
        crossing_share: Share of packets that cross, 0-1.
        fast_cpu_ns: Program and network time in the fast tier.
        slow_cpu_ns: Program and network time in the slow tier.
        ceiling_per_s: Packets a second at which the first tier is full, with the given cores.
        bottleneck: What is full first: a tier, with its most expensive step.
        latency_ns: Mean time of a packet at the asked rate.
        loss_share: Share of packets lost at the asked rate, 0-1.
        fast_bytes: Memory of tables in the fast tier.
        table_ns: Mean ns of each table's operations, by "table.tier".
        step_ns: Mean ns of each step, by "step.tier".
    """

    fast_ns: float
    slow_ns: float
    crossing_share: float
    fast_cpu_ns: float
    slow_cpu_ns: float
    ceiling_per_s: float
    bottleneck: str
    latency_ns: float
    loss_share: float
    fast_bytes: int
    table_ns: dict[str, float]
    step_ns: dict[str, float]


def queue(load: float, places: int) -> tuple[float, float]:
    """Return (mean packets waiting and served, share lost) of an M/M/1/N queue: load in Erlang, N places."""
    if load <= 0:
        return 0.0, 0.0
    if abs(load - 1) < 1e-9:
        return places / 2, 1 / (places + 1)
    if load > 1:  # fractions turned over, so that no power overflows
        rest = load ** -(places + 1)
        return (places + 1) / (1 - rest) - load / (load - 1), (load - 1) / load / (1 - rest)
    power = load ** (places + 1)
    return load / (1 - load) - (places + 1) * power / (1 - power), (1 - load) * load**places / (1 - power)


def predict(
    program: Program,
    profile: Profile,
    costs: Costs,
    chosen: dict[str, Choice],
    cores: tuple[float, float] = (1.0, 1.0),
    rate_per_s: float = 0.0,
) -> Prediction:
    """Predict what a placement does under a profile.

    Args:
        program: The network function.
        profile: The traffic.
        costs: The machine.
        chosen: Home of each table.
        cores: Cores of the fast and the slow tier.
        rate_per_s: Packets a second for latency and loss; the profile's own if 0.
    """
    known, network, rate = step_costs(program, profile, costs), costs.network, rate_per_s or profile.rate_per_s
    steps: defaultdict[tuple[int, str], float] = defaultdict(float)
    cross = 0.0
    for one in profile.classes:
        brackets, tier = iter(one.brackets), FAST
        for at in one.steps:
            step = program.steps[at]
            if not isinstance(step, Access):
                steps[(at, tier)] += one.weight * (known.fast if tier == FAST else known.slow)[at]
                continue
            choice, stays = chosen[step.table], chosen[step.table].holds(next(brackets))
            if tier == FAST and not stays:
                if choice.home == SPLIT:
                    steps[(at, FAST)] += one.weight * known.access[(at, MISS)]
                tier, cross = SLOW, cross + one.weight
            steps[(at, tier)] += one.weight * known.access[(at, choice.home if tier == FAST else SLOW)]
    fast, slow = (sum(part for (_, where), part in steps.items() if where == tier) for tier in (FAST, SLOW))
    fast += costs.tiers[FAST].base + cross * costs.hand_over
    fast += costs.tiers[FAST].steps["now"] if program.uses_time else 0.0
    slow += cross * costs.tiers[SLOW].base
    in_out = {FAST: network.get(FAST, 0.0), SLOW: cross * network.get(SLOW, 0.0)}
    fast_cpu, slow_cpu = fast + in_out[FAST], slow + in_out[SLOW]
    ceilings = {FAST: cores[0] * 1e9 / fast_cpu, SLOW: cores[1] * 1e9 / slow_cpu if slow_cpu else math.inf}
    first = min(ceilings, key=lambda tier: ceilings[tier])
    most, at = max(((part, at) for (at, where), part in steps.items() if where == first), default=(0.0, 0))
    what = f"step {at} ({program.describe(at)}, {most:.0f} ns a packet of the trace)"
    if most < in_out[first]:
        what = f"packets in and out ({in_out[first]:.0f} ns a packet of the trace)"
    slow_cpu += cross * network.get("wake", 0.0) * wakes_per_packet(rate * cross) + network.get("idle", 0.0) / rate
    latency, lost = _latency(rate, (fast_cpu, cores[0]), (slow_cpu, cores[1]), cross)
    placement = placement_of(chosen)
    tables: defaultdict[str, float] = defaultdict(float)
    for (at, tier), part in steps.items():
        if isinstance(step := program.steps[at], Access):
            tables[f"{step.table}.{tier}"] += part
    return Prediction(
        fast_ns=fast,
        slow_ns=slow,
        crossing_share=cross,
        fast_cpu_ns=fast_cpu,
        slow_cpu_ns=slow_cpu,
        ceiling_per_s=ceilings[first],
        bottleneck=f"{first} tier: {what}",
        latency_ns=latency,
        loss_share=lost,
        fast_bytes=sum(fast_bytes(program, placement, table) for table in program.tables.values()),
        table_ns=tables,
        step_ns={f"{at}.{tier}": part for (at, tier), part in steps.items()},
    )


#: Packets that the queue in front of a tier holds: the ring of an AF_XDP socket.
_PLACES = 4096


def _latency(rate: float, fast: tuple[float, float], slow: tuple[float, float], cross: float) -> tuple[float, float]:
    """Return (mean ns, share lost) of packets through both queues; a tier is (ns a packet of the trace, cores)."""
    mean, lost = queue(rate * fast[0] / fast[1] / 1e9, _PLACES)
    served = rate * (1 - lost)
    total = mean / served * 1e9
    if cross and slow[0]:
        slow_mean, slow_lost = queue(served * slow[0] / slow[1] / 1e9, _PLACES)
        total += slow_mean / (served * (1 - slow_lost)) * 1e9
        lost = 1 - (1 - lost) * (1 - cross * slow_lost)
    return total, lost


def instructions(program: Program, tables: Iterable[str]) -> int:
    """Return an estimate of the fast tier's instructions when these tables are in it."""
    inside = set(tables)
    total = _FRAME_INSTRUCTIONS
    for step in program.steps:
        if isinstance(step, Access) and step.table not in inside:
            continue
        total += 3 * sum(size(one) + 1 for one in expressions(step))
        total += _ACCESS_INSTRUCTIONS if isinstance(step, Access) else 0
        total += _REWRITE_INSTRUCTIONS * len(step.sets) if isinstance(step, Rewrite) else 0
    return total
