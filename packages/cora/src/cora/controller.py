"""The controller: which keys of split tables belong in the fast tier now. A state machine without I/O.

Each tick it sees how often keys were used in each tier. It proposes a re-plan when the predicted gain exceeds the cost
of the moves by a margin, for longer than a hysteresis time. A re-plan whose keys come back soon makes the next one wait
twice as long, so that periodic traffic causes few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

Use = tuple[bytes, float]


TICK_S = 0.1  # seconds between two looks at how many packets the slow tier takes
LOOK_S = 1.0  # seconds after which the uses of keys are read, though that number has not grown
LONGEST_LOOK_S = 8.0  # most seconds that this grows to while nothing is gained
HOLD_S = 0.25  # seconds for which a gain must last
PAUSE_S = 1.0  # least seconds between two re-plans
LONGEST_PAUSE_S = 120.0  # most seconds that the pause grows to while moved keys come back
MARGIN = 0.15  # least gain, as a share of the slow tier's present time (0-1)
LEAST_GAIN_NS_PER_S = 2e6  # least gain in ns of slow-tier time a second
MOVE_NS = 15_000.0  # time that moving one key takes
PAYBACK_S = 10.0  # seconds in which a re-plan must have paid for its moves
SMOOTHING = 0.4  # weight of the newest tick in a key's rate (0-1)
SAMPLE_EVERY = 4.0  # operations in the slow tier of which one is counted
DEVIATIONS = 2.5  # standard deviations by which a key must be more frequent than the one that it replaces
RETURN_S = 9.0  # a key that is wanted in the tier it left within this time has come back
PER_MINUTE = 12  # most re-plans in any minute


class Replan(NamedTuple):
    """Keys to move by table, and the gain that was predicted in ns of slow-tier time a second."""

    up: dict[str, list[bytes]]
    down: dict[str, list[bytes]]
    gain_ns_per_s: float


@dataclass
class SplitTable:
    """The uses of one split table's keys.

    Attributes:
        room: Entries that the fast tier has room for.
        saved_ns: Slow-tier ns that an operation saves in the fast tier.
        slow: Uses a second of keys in the slow tier.
        fast: Uses a second of keys in the fast tier.
        left: When each key last left a tier.
    """

    room: int
    saved_ns: float
    slow: dict[bytes, float] = field(default_factory=dict)
    fast: dict[bytes, float] = field(default_factory=dict)
    left: dict[bytes, float] = field(default_factory=dict)


class Controller:
    """Decides on moves. Each tick, ask whether it is `due`; if so, call `observe_slow`, `observe_fast` and `decide`."""

    def __init__(self, tables: dict[str, SplitTable]) -> None:
        self.tables, self.pause_s, self.look_s = tables, PAUSE_S, LOOK_S
        self.last_s = self.looked_s = float("-inf")
        self.rate = self.settled = 0.0
        self.since_s: float | None = None
        self.history: list[float] = []

    def due(self, now_s: float, packets_per_s: float) -> bool:
        """Return True if uses of keys are worth reading: the slow tier takes more packets than when last settled."""
        self.rate += SMOOTHING * (packets_per_s - self.rate)
        most = max((table.saved_ns for table in self.tables.values()), default=0.0)
        if max(self.rate, packets_per_s) * most < LEAST_GAIN_NS_PER_S:
            return False
        grown = packets_per_s > (1 + MARGIN) * self.settled + _noise(self.settled)
        return self.since_s is not None or grown or now_s - self.looked_s >= self.look_s

    def observe_slow(self, name: str, uses: Iterable[Use], seconds: float) -> None:
        """Take the uses of keys in the slow tier since they were last read."""
        self.tables[name].slow = _smooth(self.tables[name].slow, dict(uses), seconds)

    def observe_fast(self, name: str, uses: Iterable[Use], seconds: float) -> None:
        """Take the uses of keys in the fast tier since they were last read."""
        table, seen = self.tables[name], dict(uses)
        rates = _smooth(table.fast, seen, seconds)
        table.fast = {key: rates.get(key, 0.0) for key in seen}

    def decide(self, now_s: float) -> Replan | None:
        """Return the re-plan to carry out now, or None."""
        proposal = self._propose()
        spent = sum(sum(table.slow.values()) * table.saved_ns for table in self.tables.values())
        worth = proposal.gain_ns_per_s >= max(LEAST_GAIN_NS_PER_S, MARGIN * spent)
        if not worth or not any(proposal.up.values()):
            self.since_s, self.settled, self.looked_s = None, self.rate, now_s
            self.look_s = min(LONGEST_LOOK_S, 2 * self.look_s)
            return None
        self.since_s = now_s if self.since_s is None else self.since_s
        recent = [at for at in self.history if now_s - at < 60]
        too_soon = now_s - self.since_s < HOLD_S or now_s - self.last_s < self.pause_s
        if too_soon or len(recent) >= PER_MINUTE:
            return None
        self._remember(proposal, now_s)
        self.history = [*recent, now_s]
        return proposal

    def _propose(self) -> Replan:
        up: dict[str, list[bytes]] = {}
        down: dict[str, list[bytes]] = {}
        gain = 0.0
        for name, table in self.tables.items():
            wanted = sorted(table.slow.items(), key=lambda one: -one[1])[: table.room]
            spare = max(0, table.room - len(table.fast))
            victims = sorted(table.fast.items(), key=lambda one: one[1])
            ups, downs = [], []
            for key, rate in wanted:
                if spare:
                    spare -= 1
                    won = rate
                elif victims and rate - victims[0][1] > _noise(rate):
                    victim, lost = victims.pop(0)
                    downs.append(victim)
                    won = rate - lost
                else:
                    break
                if won * table.saved_ns * PAYBACK_S < MOVE_NS:
                    break
                ups.append(key)
                gain += won * table.saved_ns
            up[name], down[name] = ups, downs
        return Replan(up, down, gain)

    def _remember(self, proposal: Replan, now_s: float) -> None:
        """Note the moves, and wait longer after a re-plan whose keys mostly come back."""
        came_back = []
        for name, table in self.tables.items():
            recent = max(RETURN_S, 2 * self.pause_s)
            came_back += [now_s - table.left.get(key, float("-inf")) < recent for key in proposal.up[name]]
            for key in proposal.down[name]:
                table.left[key] = now_s
                table.fast.pop(key, None)
            for key in proposal.up[name]:
                table.fast[key] = table.slow.pop(key, 0.0)
            table.left = {key: at for key, at in table.left.items() if at > now_s - 2 * LONGEST_PAUSE_S}
        if sum(came_back) > len(came_back) / 2:
            self.pause_s = min(LONGEST_PAUSE_S, self.pause_s * 4)
        elif now_s - self.last_s > 2 * self.pause_s or not any(came_back):
            self.pause_s = max(PAUSE_S, self.pause_s / 4)
        self.last_s = self.looked_s = now_s
        self.since_s, self.settled, self.look_s = None, float("inf"), LOOK_S


def _noise(rate: float) -> float:
    """Return by how much a sampled rate must exceed another one, so that chance alone rarely does."""
    window_s = TICK_S * (2 / SMOOTHING - 1)
    return 1.0 + DEVIATIONS * math.sqrt(max(0.0, rate) * SAMPLE_EVERY / window_s)


def _smooth(rates: dict[bytes, float], uses: dict[bytes, float], seconds: float) -> dict[bytes, float]:
    """Return rates a second after one more reading; keys that are hardly used any more are forgotten."""
    weight = 1 - (1 - SMOOTHING) ** (seconds / TICK_S)
    found = {key: rate * (1 - weight) for key, rate in rates.items()}
    for key, count in uses.items():
        found[key] = found.get(key, 0.0) + weight * count / seconds
    return {key: rate for key, rate in found.items() if rate > 0.5}
