"""The state-centric model: time per packet from the state that packets touch. Pure functions of profile and costs.

The time of a step does not depend on which packet takes it, but on the table operation: its kind, whether it hits, and
how large the working set of its keys is. A placement decides in which tier each class of packets runs each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from cora.expressions import size
from cora.machine import Costs, Curve, Limits
from cora.placement import BOTH, FAST, SLOW, SPLIT, Placement, atomic, fast_bytes, layout, locked, options
from cora.profile import SPLITS, PacketClass, Profile
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
    header = layout(table.key)[1] + layout(table.value, 8)[1]
    for home in options(program, table):
        if home == SLOW:
            found.append(Choice(SLOW))
        elif table.storage in limits.storages and header <= limits.entry_bytes:
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
    if home not in {SLOW} and locked(program, table, home):
        return "write"
    if step.sets and home != SLOW and atomic(program, table):
        return "add"
    return "write" if step.sets else "read"


def _table_cost(program: Program, profile: Profile, costs: Costs, at: int, tier: str, home: str) -> float:
    step = program.steps[at]
    assert isinstance(step, Access)
    table, use = program.tables[step.table], profile.use(at)
    share, keys = (use.hit_share, use.working_set) if use else (1.0, 1.0)
    if table.storage in {"array", "sketch", "lpm"}:
        share = 1.0
    if table.storage == "lpm":
        keys = float(max(1, len(table.preset)))
    total = 0.0
    for hit, weight in ((True, share), (False, 1 - share)):
        curve = _curve(costs, tier, table.storage, operation(program, step, home, hit))
        total += weight * curve.at(keys)
    return max(0.0, total)


def _curve(costs: Costs, tier: str, storage: str, name: str) -> Curve:
    """Return the curve of an operation, or of the nearest one that was calibrated."""
    tables = costs.tiers[tier].tables
    nearest = {"create": "write", "delete": "write", "add": "write", "miss": "read", "write": "add", "read": "add"}
    while f"{storage}.{name}" not in tables:
        if name not in nearest or (name, storage) == ("add", "array"):
            return Curve((1.0,), (0.0,))
        following = nearest.pop(name)
        name = following
    return tables[f"{storage}.{name}"]


def step_costs(program: Program, profile: Profile, costs: Costs) -> StepCosts:
    """Return what each step costs in each tier under a profile."""
    plain: dict[str, dict[int, float]] = {"fast": {}, "slow": {}}
    access: dict[tuple[int, str], float] = {}
    for tier, known in costs.tiers.items():
        for at, step in enumerate(program.steps):
            ns = known.steps["op"] * sum(size(one) for one in expressions(step))
            if isinstance(step, Rewrite):
                ns += known.steps["rewrite"] * len(step.sets)
            if isinstance(step, Parse | Assign):
                ns += known.steps["op"]
            if isinstance(step, Branch):
                taken = profile.taken.get(at, 0.0)
                ns += known.steps["op"] + known.steps["mispredict"] * 2 * min(taken, 1 - taken)
            plain[tier][at] = ns
            if isinstance(step, Access):
                homes = [SLOW] if tier == "slow" else [FAST, SPLIT, BOTH]
                for home in homes:
                    access[(at, home)] = ns + _table_cost(program, profile, costs, at, tier, home)
                if tier == "fast":
                    use, storage = profile.use(at), program.tables[step.table].storage
                    access[(at, MISS)] = ns + _curve(costs, tier, storage, "miss").at(use.working_set if use else 1.0)
    slow = {at: access.get((at, SLOW), ns) for at, ns in plain["slow"].items()}
    return StepCosts(plain["fast"], slow, access)


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


def run_class(
    program: Program, one: PacketClass, chosen: dict[str, Choice], costs: StepCosts
) -> tuple[float, float, bool, list[tuple[int, str, float]]]:
    """Return fast ns, slow ns, "crossed", and (step, tier, ns) of one class of packets."""
    brackets = iter(one.brackets)
    fast = slow = 0.0
    crossed = False
    parts = []
    for at in one.steps:
        step = program.steps[at]
        tier, ns = SLOW if crossed else FAST, costs.slow[at] if crossed else costs.fast[at]
        if isinstance(step, Access):
            choice, bracket = chosen[step.table], next(brackets)
            if not crossed and choice.home == SPLIT and not choice.holds(bracket):
                fast += costs.access[(at, MISS)]
            if not choice.holds(bracket):
                crossed = True
            tier = SLOW if crossed else FAST
            ns = costs.access[(at, SLOW if crossed else choice.home)]
        parts.append((at, tier, ns))
        fast, slow = (fast, slow + ns) if tier == SLOW else (fast + ns, slow)
    return fast, slow, crossed, parts


def queue(load: float, places: int) -> tuple[float, float]:
    """Return (mean packets waiting and served, share lost) of an M/M/1/N queue: load in Erlang, N places."""
    if load <= 0:
        return 0.0, 0.0
    n = places
    if abs(load - 1) < 1e-9:
        return n / 2, 1 / (n + 1)
    if load < 1:
        power = load ** (n + 1)
        mean = load / (1 - load) - (n + 1) * power / (1 - power)
        return mean, (1 - load) * load**n / (1 - power)
    inverse = load ** -(n + 1)
    mean = (n + 1) / (1 - inverse) - load / (load - 1)
    return mean, (load - 1) / load / (1 - inverse)


def predict(
    program: Program,
    profile: Profile,
    costs: Costs,
    chosen: dict[str, Choice],
    *,
    cores: tuple[float, float] = (1.0, 1.0),
    rate_per_s: float | None = None,
    places: int = 4096,
) -> Prediction:
    """Predict what a placement does under a profile.

    Args:
        program: The network function.
        profile: The traffic.
        costs: The machine.
        chosen: Home of each table.
        cores: Cores of the fast and the slow tier.
        rate_per_s: Packets a second for latency and loss; the profile's own if None.
        places: Packets that the queue in front of a tier holds.
    """
    known = step_costs(program, profile, costs)
    base = {tier: one.base for tier, one in costs.tiers.items()}
    base["fast"] += costs.tiers["fast"].steps["now"] if program.uses_time else 0.0
    fast, slow, cross = base["fast"], 0.0, 0.0
    tables: dict[str, float] = {}
    heaviest: dict[tuple[int, str], float] = {}
    for one in profile.classes:
        on_fast, on_slow, crossed, parts = run_class(program, one, chosen, known)
        fast += one.weight * (on_fast + costs.hand_over * crossed)
        slow += one.weight * (on_slow + base["slow"] * crossed)
        cross += one.weight * crossed
        for at, tier, ns in parts:
            heaviest[(at, tier)] = heaviest.get((at, tier), 0.0) + one.weight * ns
            step = program.steps[at]
            if isinstance(step, Access):
                tables[f"{step.table}.{tier}"] = tables.get(f"{step.table}.{tier}", 0.0) + one.weight * ns
    fast_cpu = fast + costs.network.get("fast", 0.0)
    rate = rate_per_s or profile.rate_per_s
    network = costs.network
    slow_cpu = slow + cross * network.get("slow", 0.0)
    ceilings = {"fast": cores[0] * 1e9 / fast_cpu, "slow": cores[1] * 1e9 / slow_cpu if slow_cpu else math.inf}
    first = min(ceilings, key=lambda tier: ceilings[tier])
    slow_cpu += cross * network.get("wake", 0.0) * wakes_per_packet(rate * cross) + network.get("idle", 0.0) / rate
    latency, lost = _latency(rate, (fast_cpu, cores[0]), (slow_cpu, cores[1]), cross, places)
    placement = placement_of(chosen)
    return Prediction(
        fast,
        slow,
        cross,
        fast_cpu,
        slow_cpu,
        ceilings[first],
        f"{first} tier: {_heaviest(program, heaviest, first, costs.network.get(first, 0.0), cross)}",
        latency,
        lost,
        sum(fast_bytes(program, placement, table) for table in program.tables.values()),
        tables,
        {f"{at}.{tier}": ns for (at, tier), ns in heaviest.items()},
    )


def _heaviest(program: Program, parts: dict[tuple[int, str], float], tier: str, network: float, cross: float) -> str:
    own = {at: ns for (at, where), ns in parts.items() if where == tier}
    at = max(own, key=lambda step: own[step], default=None)
    network *= cross if tier == "slow" else 1.0
    if at is None or network > own[at]:
        return f"packets in and out ({network:.0f} ns a packet of the trace)"
    return f"step {at} ({program.describe(at)}, {own[at]:.0f} ns a packet of the trace)"


def _latency(
    rate: float, fast: tuple[float, float], slow: tuple[float, float], cross: float, places: int
) -> tuple[float, float]:
    mean, lost = queue(rate * fast[0] / fast[1] / 1e9, places)
    served = rate * (1 - lost)
    total = mean / served * 1e9 if served else 0.0
    if cross and slow[0]:
        slow_mean, slow_lost = queue(served * slow[0] / slow[1] / 1e9, places)
        through = served * cross * (1 - slow_lost)
        total += cross * (slow_mean / through * 1e9 if through else 0.0)
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
