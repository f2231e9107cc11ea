"""The path of each socket, the failed paths and when they are tried again. Pure state."""

from __future__ import annotations

from dataclasses import dataclass, field

from c4p.model import UNKNOWN, NetworkPath

AGAIN_S = {"dead": 1.0, "lost": 1.0, "slow": 5.0}
LONGEST_AGAIN_S = 60.0


@dataclass(slots=True)
class _Failed:
    until: float
    pause_s: float


@dataclass(slots=True)
class PathChoice:
    """The paths to one neighbour and the sockets that take them.

    Attributes:
        ports: Source ports by path. `{UNKNOWN: [0]}` where nothing is known: the kernel chooses.
        planned: The planned path of each socket.
    """

    ports: dict[NetworkPath, list[int]]
    planned: list[NetworkPath]
    current: list[NetworkPath] = field(default_factory=list)
    _failed: dict[NetworkPath, _Failed] = field(default_factory=dict)
    _turn: dict[NetworkPath, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.current = list(self.planned)

    @property
    def known(self) -> bool:
        """Return True if there is a choice."""
        return len(self.ports) > 1

    def next_port(self, path: NetworkPath) -> int:
        """Return a source port of this path, another one at each call."""
        ports = self.ports[path]
        turn = self._turn.get(path, 0)
        self._turn[path] = turn + 1
        return ports[turn % len(ports)]

    def leave(self, index: int, why: str, now: float) -> NetworkPath:
        """Move a socket away from its failed path.

        Args:
            index: The socket.
            why: "dead", "lost" or "slow".
            now: Seconds.

        Returns:
            Where it goes: the path that is not left and that has the fewest sockets; the same path if all are left.
        """
        path = self.current[index]
        if path == UNKNOWN:
            return path
        self.failed(path, why, now)
        return self.elsewhere(index)

    def failed(self, path: NetworkPath, why: str, now: float) -> None:
        """Exclude a path for a time that doubles with each failure."""
        before = self._failed.get(path)
        pause = min(2 * before.pause_s, LONGEST_AGAIN_S) if before else AGAIN_S[why]
        self._failed[path] = _Failed(now + pause, pause)

    def elsewhere(self, index: int) -> NetworkPath:
        """Return the path with the fewest sockets for a socket whose own has failed."""
        free = [path for path in self.ports if path not in self._failed] or list(self.ports)
        others = [path for other, path in enumerate(self.current) if other != index]
        best = min(free, key=lambda path: (others.count(path), self.planned.count(path)))
        self.current[index] = best
        return best

    def due(self, now: float) -> list[tuple[int, NetworkPath]]:
        """Return the sockets that may try their planned path again, at most one for each path."""
        tries: dict[NetworkPath, int] = {}
        for index, path in enumerate(self.planned):
            left = self._failed.get(path)
            if self.current[index] != path and (left is None or left.until <= now):
                tries.setdefault(path, index)
        return [(index, path) for path, index in tries.items()]

    def arrived(self, index: int, path: NetworkPath) -> None:
        """Record that a socket has connected over a path."""
        self.current[index] = path

    def works(self, path: NetworkPath) -> None:
        """Record that a path works: it has delivered enough bytes."""
        self._failed.pop(path, None)

    def replan(self, ports: dict[NetworkPath, list[int]], planned: list[NetworkPath], all_anew: bool) -> list[int]:
        """Replace the ports and the planned paths.

        Returns:
            Sockets that have to be connected anew.
        """
        before, self.planned = self.planned, list(planned)
        self.ports = ports
        if all_anew:
            self._failed.clear()
        changed = [s for s, path in enumerate(planned) if all_anew or path != before[s] or self.current[s] not in ports]
        for index in changed:
            if self.current[index] not in ports:
                self.current[index] = planned[index]
        return changed
