"""Parameter files: what operations cost on a machine (measured here) and what a machine can hold (public or measured).

A file is either measured, and says when and where, or public, and names its source. Costs come from measured files
only; a public file may add limits. The two are never merged into one file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct

from cora.files import read


class Curve(Struct, frozen=True):
    """Cost in ns against the working set in keys, linear in the logarithm of the latter between the points."""

    keys: tuple[float, ...]
    ns: tuple[float, ...]

    def at(self, keys: float) -> float:
        """Return the cost for a working set."""
        return float(np.interp(np.log(max(1.0, keys)), np.log(self.keys), self.ns))


class TierCosts(Struct, frozen=True):
    """Costs of one tier in ns.

    Attributes:
        base: A packet that is only parsed and forwarded.
        steps: By name: "op" (one operator), "rewrite" (one field), "now", and
            "mispredict" (a branch that goes either way at random).
        tables: By "storage.operation": read, miss, write, add, create, delete.
    """

    base: float
    steps: dict[str, float]
    tables: dict[str, Curve]


class Costs(Struct, frozen=True, forbid_unknown_fields=True):
    """A measured parameter file.

    Attributes:
        when: Date of the measurement.
        where: Kernel and CPU.
        tiers: Costs by tier.
        hand_over: ns in the fast tier to hand a packet over.
        network: Costs of real devices beyond the programs, empty until measured. "slow": ns per packet by AF_XDP
            socket in and packet socket out. "wake": ns per wake-up of the slow tier. "idle": ns per second that the
            slow tier takes without packets. "fast": ns per packet in driver and redirection, if known.
        noise: Relative spread of repeated measurements, 0-1.
    """

    when: str
    where: str
    tiers: dict[str, TierCosts]
    hand_over: float
    network: dict[str, float] = {}
    noise: float = 0.0
    kind: Literal["measured"] = "measured"


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the fast tier.

    Attributes:
        kind: "public" or "set by hand".
        source: Where the numbers were published; "" if set by hand.
        bytes: Memory for tables.
        entries: Entries of all tables together.
        entry_bytes: Largest entry, key and value.
        instructions: Instructions of the program.
        storages: Kinds of maps.
    """

    kind: Literal["public", "set by hand"] = "set by hand"
    source: str = ""
    bytes: int = 256 << 20
    entries: int = 16_000_000
    entry_bytes: int = 4096
    instructions: int = 100_000
    storages: tuple[str, ...] = ("array", "hash", "lru", "lpm", "sketch")

    def __post_init__(self) -> None:
        if self.kind == "public" and not self.source:
            raise ValueError("public limits must name their source")


def load_costs(path: Path) -> Costs:
    """Read a measured parameter file."""
    return read(path, Costs, "costs must be measured on this machine: run `cora calibrate`")


def load_limits(path: Path) -> Limits:
    """Read limits from a file, or those that come with the package by that name; a public file must name its source."""
    named = path if path.exists() or not shipped(path.name).exists() else shipped(path.name)
    return read(named, Limits, "limits stand in a file of their own, without costs; see docs/commands.md")


def shipped(name: str) -> Path:
    """Return the path of a parameter file that comes with the package."""
    return Path(__file__).parent / "data" / f"{name}.json"
