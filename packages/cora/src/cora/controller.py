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


@dataclass(frozen=True)
class Policy:
    """When to re-plan.

    Attributes:
        tick_s: Seconds between two looks at how many packets the slow tier takes.
        look_s: Seconds after which the uses of keys are read, though that number has not grown.
        longest_look_s: Most seconds that `look_s` grows to while nothing is gained.
        hold_s: Seconds for which a gain must last.
        pause_s: Least seconds between two re-plans.
        longest_pause_s: Most seconds that the pause grows to while moved keys come back.
        margin: Least gain, as a share of the slow tier's present time (0-1).
        least_gain_ns_per_s: Least gain in ns of slow-tier time a second.
        move_ns: Time that moving one key takes.
        payback_s: Seconds in which a re-plan must have paid for its moves.
        smoothing: Weight of the newest tick in a key's rate (0-1).
        sample_every: Operations in the slow tier of which one is counted.
        deviations: Standard deviations by which a key must be more frequent than the one that it replaces.
        return_s: A key that is wanted in the tier it left within this time has come back.
        per_minute: Most re-plans in any minute.
    """

    tick_s: float = 0.1
    look_s: float = 1.0
    longest_look_s: float = 8.0
    hold_s: float = 0.25
    pause_s: float = 1.0
    longest_pause_s: float = 120.0
    margin: float = 0.15
    least_gain_ns_per_s: float = 2e6
    move_ns: float = 15_000.0
    payback_s: float = 10.0
    smoothing: float = 0.4
    sample_every: float = 4.0
    deviations: float = 2.5
    return_s: float = 9.0
    per_minute: int = 12


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

    def __init__(self, tables: dict[str, SplitTable], policy: Policy | None = None) -> None:
        self.tables, self.policy = tables, policy or Policy()
        self.pause_s = self.policy.pause_s
        self.look_s = self.policy.look_s
        self.last_s = self.looked_s = float("-inf")
        self.rate = self.settled = 0.0
        self.since_s: float | None = None
        self.history: list[float] = []

    def due(self, now_s: float, packets_per_s: float) -> bool:
        """Return True if uses of keys are worth reading: the slow tier takes more packets than when last settled."""
        self.rate += self._weight(self.policy.tick_s) * (packets_per_s - self.rate)
        most = max((table.saved_ns for table in self.tables.values()), default=0.0)
        if max(self.rate, packets_per_s) * most < self.policy.least_gain_ns_per_s:
            return False
        grown = packets_per_s > (1 + self.policy.margin) * self.settled + self._noise(self.settled)
        return self.since_s is not None or grown or now_s - self.looked_s >= self.look_s

    def observe_slow(self, name: str, uses: Iterable[Use], seconds: float) -> None:
        """Take the uses of keys in the slow tier since they were last read."""
        table = self.tables[name]
        table.slow = _smooth(table.slow, dict(uses), seconds, self._weight(seconds))

    def observe_fast(self, name: str, uses: Iterable[Use], seconds: float) -> None:
        """Take the uses of keys in the fast tier since they were last read."""
        table, seen = self.tables[name], dict(uses)
        rates = _smooth(table.fast, seen, seconds, self._weight(seconds))
        table.fast = {key: rates.get(key, 0.0) for key in seen}

    def _weight(self, seconds: float) -> float:
        return float(1 - (1 - self.policy.smoothing) ** (seconds / self.policy.tick_s))

    def _spent(self) -> float:
        return sum(sum(table.slow.values()) * table.saved_ns for table in self.tables.values())

    def decide(self, now_s: float) -> Replan | None:
        """Return the re-plan to carry out now, or None."""
        proposal = self._propose()
        if not self._worth(proposal):
            self.since_s, self.settled, self.looked_s = None, self.rate, now_s
            self.look_s = min(self.policy.longest_look_s, 2 * self.look_s)
            return None
        self.since_s = now_s if self.since_s is None else self.since_s
        recent = [at for at in self.history if now_s - at < 60]
        if now_s - self.since_s < self.policy.hold_s or now_s - self.last_s < self.pause_s:
            return None
        if len(recent) >= self.policy.per_minute:
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
                elif victims and rate - victims[0][1] > self._noise(rate):
                    victim, lost = victims.pop(0)
                    downs.append(victim)
                    won = rate - lost
                else:
                    break
                if won * table.saved_ns * self.policy.payback_s < self.policy.move_ns:
                    break
                ups.append(key)
                gain += won * table.saved_ns
            up[name], down[name] = ups, downs
        return Replan(up, down, gain)

    def _noise(self, rate: float) -> float:
        """Return by how much a sampled rate must exceed another one, so that chance alone rarely does."""
        window_s = self.policy.tick_s * (2 / self.policy.smoothing - 1)
        return 1.0 + self.policy.deviations * math.sqrt(max(0.0, rate) * self.policy.sample_every / window_s)

    def _worth(self, proposal: Replan) -> bool:
        if not any(proposal.up.values()):
            return False
        return proposal.gain_ns_per_s >= max(self.policy.least_gain_ns_per_s, self.policy.margin * self._spent())

    def _remember(self, proposal: Replan, now_s: float) -> None:
        """Note the moves, and wait longer after a re-plan whose keys mostly come back."""
        returned = total = 0
        for name, table in self.tables.items():
            for key in proposal.up[name]:
                total += 1
                returned += now_s - table.left.get(key, float("-inf")) < max(self.policy.return_s, 2 * self.pause_s)
            for key in proposal.down[name]:
                table.left[key] = now_s
                table.fast.pop(key, None)
            for key in proposal.up[name]:
                table.fast[key] = table.slow.pop(key, 0.0)
            oldest = now_s - 2 * self.policy.longest_pause_s
            table.left = {key: at for key, at in table.left.items() if at > oldest}
        if total and returned > total / 2:
            self.pause_s = min(self.policy.longest_pause_s, self.pause_s * 4)
        elif now_s - self.last_s > 2 * self.pause_s or not returned:
            self.pause_s = max(self.policy.pause_s, self.pause_s / 4)
        self.last_s = self.looked_s = now_s
        self.since_s, self.settled, self.look_s = None, float("inf"), self.policy.look_s


def _smooth(rates: dict[bytes, float], uses: dict[bytes, float], seconds: float, weight: float) -> dict[bytes, float]:
    """Return rates a second after one more tick; keys that are hardly used any more are forgotten."""
    found = {key: rate * (1 - weight) for key, rate in rates.items()}
    for key, count in uses.items():
        found[key] = found.get(key, 0.0) + weight * count / seconds
    return {key: rate for key, rate in found.items() if rate > 0.5}
