"""Which way each socket takes, which ways are left for now and when they are tried again: pure state."""

from __future__ import annotations

from dataclasses import dataclass, field

from c4p.model import UNKNOWN, Way

AGAIN_S = {"dead": 1.0, "lost": 1.0, "slow": 5.0}
LONGEST_AGAIN_S = 60.0


@dataclass(slots=True)
class _Left:
    until: float
    pause_s: float


@dataclass(slots=True)
class Ways:
    """Ways to one neighbour and who takes them.

    Attributes:
        ports: Source ports by way. `{UNKNOWN: [0]}` where nothing is known: the kernel chooses.
        planned: The planned way of each socket.
    """

    ports: dict[Way, list[int]]
    planned: list[Way]
    now_at: list[Way] = field(default_factory=list)
    _left: dict[Way, _Left] = field(default_factory=dict)
    _turn: dict[Way, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now_at = list(self.planned)

    @property
    def known(self) -> bool:
        """Return True if there is a choice."""
        return len(self.ports) > 1

    def next_port(self, way: Way) -> int:
        """A source port of this way; each call gives the next one, so that a port in use is not asked for again."""
        ports = self.ports[way]
        turn = self._turn.get(way, 0)
        self._turn[way] = turn + 1
        return ports[turn % len(ports)]

    def leave(self, slot: int, why: str, now: float) -> Way:
        """A socket leaves its way.

        Args:
            slot: The socket.
            why: "dead", "lost" or "slow".
            now: Seconds.

        Returns:
            Where it goes: the way that is not left and that has the fewest sockets; the same way if all are left.
        """
        way = self.now_at[slot]
        if way == UNKNOWN:
            return way
        self.failed(way, why, now)
        return self.elsewhere(slot)

    def failed(self, way: Way, why: str, now: float) -> None:
        """A way is not to be taken for a time that doubles with each failure."""
        before = self._left.get(way)
        pause = min(2 * before.pause_s, LONGEST_AGAIN_S) if before else AGAIN_S[why]
        self._left[way] = _Left(now + pause, pause)

    def elsewhere(self, slot: int) -> Way:
        """The best way for a socket whose own is left."""
        free = [way for way in self.ports if way not in self._left] or list(self.ports)
        others = [way for index, way in enumerate(self.now_at) if index != slot]
        best = min(free, key=lambda way: (others.count(way), self.planned.count(way)))
        self.now_at[slot] = best
        return best

    def due(self, now: float) -> list[tuple[int, Way]]:
        """Sockets that are not on their planned way and may try it again: at most one for each way."""
        tries: dict[Way, int] = {}
        for slot, way in enumerate(self.planned):
            left = self._left.get(way)
            if self.now_at[slot] != way and (left is None or left.until <= now):
                tries.setdefault(way, slot)
        return [(slot, way) for way, slot in tries.items()]

    def arrived(self, slot: int, way: Way) -> None:
        """A socket is on a way again."""
        self.now_at[slot] = way

    def works(self, way: Way) -> None:
        """A way has delivered for long enough to be trusted."""
        self._left.pop(way, None)

    def replan(self, ports: dict[Way, list[int]], planned: list[Way], all_anew: bool) -> list[int]:
        """Other ways are planned, or ports lead elsewhere.

        Returns:
            Sockets that have to be connected anew.
        """
        before, self.planned = self.planned, list(planned)
        self.ports = ports
        if all_anew:
            self._left.clear()
        changed = [s for s, way in enumerate(planned) if all_anew or way != before[s] or self.now_at[s] not in ports]
        for slot in changed:
            if self.now_at[slot] not in ports:
                self.now_at[slot] = planned[slot]
        return changed

    def left(self) -> list[Way]:
        """Ways that are not taken for now."""
        return list(self._left)
