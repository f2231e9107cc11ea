"""Parameter files: what operations cost on a machine (measured here) and what a machine can hold (public or measured).

A file is either measured, and says when and where, or public, and names its source. Costs come from measured files
only; a public file may add limits. The two are never merged into one file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cora.errors import BadInput

TIERS = ("fast", "slow")


@dataclass(frozen=True)
class Curve:
    """Cost in ns against the working set in keys, linear in the logarithm of the latter between the points."""

    keys: tuple[float, ...]
    ns: tuple[float, ...]

    def at(self, keys: float) -> float:
        """Return the cost for a working set."""
        return float(np.interp(np.log(max(1.0, keys)), np.log(self.keys), self.ns))


@dataclass(frozen=True)
class TierCosts:
    """Costs of one tier in ns.

    Attributes:
        base: A packet that is only parsed and forwarded.
        steps: By name: "op" (one operator), "hash" (`hash_of` of three values), "rewrite" (one field), "now", and
            "mispredict" (a branch that goes either way at random).
        tables: By "storage.operation": read, miss, write, add, create, delete.
    """

    base: float
    steps: dict[str, float]
    tables: dict[str, Curve]


@dataclass(frozen=True)
class Costs:
    """A measured parameter file.

    Attributes:
        when: Date of the measurement.
        where: Kernel and CPU.
        tiers: Costs by tier.
        hand_over: ns in the fast tier to hand a packet over.
        network: Costs of real devices beyond the programs, empty until measured: "fast" (ns per packet in the driver
            and redirection), "slow" (ns per packet by AF_XDP socket in, packet socket out), "wake" (ns per wake-up of
            the slow tier), "idle" (ns per second that the slow tier takes without packets).
        noise: Relative spread of repeated measurements, 0-1.
    """

    when: str
    where: str
    tiers: dict[str, TierCosts]
    hand_over: float
    network: dict[str, float] = field(default_factory=dict)
    noise: float = 0.0
    kind: str = "measured"

    def save(self, path: Path) -> None:
        """Write the file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Limits:
    """What the fast tier can hold.

    Attributes:
        kind: "public" or "set by hand".
        source: Where the numbers were published.
        bytes: Memory for tables.
        entries: Entries of all tables together.
        entry_bytes: Largest entry, key and value.
        instructions: Instructions of the program.
        storages: Kinds of maps.
    """

    kind: str = "set by hand"
    source: str = "default of cora"
    bytes: int = 256 << 20
    entries: int = 16_000_000
    entry_bytes: int = 4096
    instructions: int = 100_000
    storages: tuple[str, ...] = ("array", "hash", "lru", "lpm", "sketch")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{path} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadInput(f"{path} must hold a JSON object")
    return data


def load_costs(path: Path) -> Costs:
    """Read a measured parameter file."""
    data = _read(path)
    if data.get("kind") != "measured":
        raise BadInput(f"{path} is {data.get('kind')!r}; costs must be measured: run `cora calibrate`")
    try:
        tiers = {
            name: TierCosts(
                tier["base"],
                tier["steps"],
                {key: Curve(tuple(curve["keys"]), tuple(curve["ns"])) for key, curve in tier["tables"].items()},
            )
            for name, tier in data["tiers"].items()
        }
        return Costs(**{**data, "tiers": tiers})
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is no parameter file ({error}); make one with `cora calibrate`") from error


def load_limits(path: Path) -> Limits:
    """Read limits; a public file must name its source and may hold no costs."""
    data = _read(path)
    if data.get("kind") == "public" and not data.get("source"):
        raise BadInput(f"{path} is public and must name its source")
    if "tiers" in data:
        raise BadInput(f"{path} holds measured costs; limits stand in a file of their own")
    try:
        return Limits(**{**data, "storages": tuple(data.get("storages", Limits.storages))})
    except TypeError as error:
        raise BadInput(f"{path} cannot be read as limits: {error}") from error


def shipped(name: str) -> Path:
    """Return the path of a parameter file that comes with the package."""
    return Path(__file__).parent / "data" / f"{name}.json"
