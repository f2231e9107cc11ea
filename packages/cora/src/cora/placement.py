"""Placements: where each table lives, and what follows for the steps of a program.

A packet starts in the fast tier and crosses to the slow tier at the first table operation whose entry lives there. It
never returns, unless the placement allows bounces. The homes of a table:

- fast: a BPF map.
- slow: memory of the slow tier.
- split: the heaviest keys fast, all others slow. An entry has exactly one home. The slow tier pulls an entry down if
  it needs one that is up, so each operation sees the entry's latest state.
- both: each tier adds to a copy of its own, and reading sums them. Only for arrays and sketches that steps only add to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cora.program import SKETCH_ROWS, Access, Program, Table, Verdict, adds, reads_entry, successors

FAST, SLOW, SPLIT, BOTH = "fast", "slow", "split", "both"
SPLIT_HEADER_BYTES = 16


@dataclass(frozen=True)
class Placement:
    """Homes of all tables.

    Attributes:
        homes: Home by table.
        fast_entries: Room for entries in the fast tier, by split table.
        bounces: True if a packet may go back to the fast tier for a table there.
    """

    homes: dict[str, str]
    fast_entries: dict[str, int] = field(default_factory=dict)
    bounces: bool = False

    def label(self) -> str:
        """Return the placement as one line."""
        rooms = {name: f"({entries})" for name, entries in self.fast_entries.items()}
        return " ".join(f"{name}={home}{rooms.get(name, '')}" for name, home in self.homes.items())


def atomic(program: Program, table: Table) -> bool:
    """Return True if steps change the table's fields without a lock.

    Each change then is one instruction: it adds to a field of 32 bits or more, or stores what does not read the entry.
    """
    changes = [change for step in program.accesses(table.name) for change in step.sets]
    wide = dict(table.value)
    return all(wide[name] >= 32 if adds(name, value) else not reads_entry(value) for name, value in changes)


def locked(program: Program, table: Table, home: str) -> bool:
    """Return True if entries in the fast tier carry a lock: exact ones that change by more than `atomic` steps."""
    if table.storage not in {"hash", "array"} or not program.written(table.name):
        return False
    return home == SPLIT or not atomic(program, table)


def header_bytes(program: Program, table: Table, home: str) -> int:
    """Return the bytes in front of an entry's fields in the fast tier: a lock and the uses of its key."""
    return SPLIT_HEADER_BYTES if locked(program, table, home) else 0


def fast_bytes(program: Program, placement: Placement, table: Table) -> int:
    """Return the bytes of a table's entries in the fast tier, without the kernel's own overhead per entry."""
    home = placement.homes[table.name]
    entries = {SLOW: 0, SPLIT: placement.fast_entries.get(table.name, 0)}.get(home, table.entries)
    if table.kind == "sketch":
        return SKETCH_ROWS * entries * 8
    return entries * (table.key_layout.size + table.value_layout.size + header_bytes(program, table, home))


def options(program: Program, table: Table) -> list[str]:
    """Return the homes that a table may have."""
    written, homes = program.written(table.name), [FAST, SLOW]
    if table.storage == "hash" and written:
        homes.append(SPLIT)
    adds_only = table.storage in {"array", "sketch"} and program.add_only(table.name)
    if adds_only or (table.storage in {"array", "hash", "lpm"} and not written):
        homes.append(BOTH)
    return homes


def tiers(program: Program, placement: Placement) -> list[frozenset[str]]:
    """Return the tiers in which a packet can be when it is at each step, before the step's own crossing."""
    where: list[set[str]] = [set() for _ in program.steps]
    where[0].add(FAST)
    for at, step in enumerate(program.steps):
        after = set(where[at])
        if isinstance(step, Access):
            home = placement.homes[step.table]
            if home == SPLIT:
                after |= {SLOW} if after else set()
            elif after and (home == SLOW or (home == FAST and placement.bounces)):
                after = {home}
        for target in successors(step):
            where[target] |= after
    return [frozenset(tiers) for tiers in where]


def why_illegal(program: Program, placement: Placement) -> str:
    """Return why packets cannot be processed under a placement, or "" if they can."""
    for name, home in placement.homes.items():
        if home not in options(program, program.tables[name]):
            return f"table {name} of kind {program.tables[name].kind} cannot have the home {home!r}"
    for at, tier in enumerate(tiers(program, placement)):
        step = program.steps[at]
        if SLOW not in tier:
            continue
        if isinstance(step, Access) and placement.homes[step.table] == FAST and not placement.bounces:
            return f"step {at} ({program.describe(at)}) needs the fast tier after packets have crossed to the slow one"
        if isinstance(step, Verdict) and step.kind == "up":
            return f"step {at} hands packets up to the device's stack, which only the fast tier can"
    return ""
