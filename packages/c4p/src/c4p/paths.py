"""How the sockets to one neighbour share its pieces, and when a path is left: pure state, no I/O, time comes in.

Each path takes a new piece while it has room in its window, so a faster path takes more. The window holds what the path
delivers in its shortest round trip plus `QUEUE_S`. A path is *dead* when nothing of it has been acknowledged for
`DEAD_S` while the kernel has unacknowledged segments of it and another path goes on (or has nothing to do);
it is *slow* when it delivers less than `SLOW_SHARE` of the median path over `SLOW_S`.

Source:
    C4, section on C4P's dynamic load balance: completion times per queue pair are watched and work moves between them.
    Deviation: pieces are pulled by window instead of being re-planned after the fact; thresholds are ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

DEAD_S = 0.3
KERNEL_S = 0.2  # so long the kernel must have waited, too
ALL_DEAD_S = 1.0
SLOW_S = 0.4
SLOW_SHARE = 0.3
QUEUE_S = 0.035
FIRST_WINDOW_BYTES = 512 * 1024
#: Always some pieces together: a congestion control that is never given more than it has sent finds no faster rate.
LEAST_WINDOW_BYTES = 384 * 1024
LARGEST_WINDOW_BYTES = 8 * 1024 * 1024
SPAN_S = 0.05
LEAST_BYTES = 64 * 1024  # fewer say nothing about a path's rate

Key = tuple[int, int]  # sequence of the operation, number of the piece


@dataclass(slots=True)
class Path:
    """One socket's account.

    Attributes:
        name: Names the path in events.
        outstanding: Pieces that were sent and are not acknowledged: when sent (seconds), bytes.
        rate: Bytes a second while there was something to deliver; 0 where unknown.
        delivered_bytes: Acknowledged since the start.
    """

    name: str
    outstanding: dict[Key, tuple[float, int]] = field(default_factory=dict)
    outstanding_bytes: int = 0
    rate: float = 0.0
    delivered_bytes: int = 0
    shortest_s: float = float("inf")
    progress: float = 0.0  # when it last delivered, or began to have something to deliver
    _span_start: float = 0.0
    _span_bytes: int = 0
    _busy_since: float = 0.0
    _slow_for: float = 0.0
    _slow_at: float = 0.0

    def window(self) -> int:
        """Bytes that may be under way."""
        if not self.rate:
            return FIRST_WINDOW_BYTES
        wanted = int(self.rate * (min(self.shortest_s, 0.2) + QUEUE_S))
        return min(max(wanted, LEAST_WINDOW_BYTES), LARGEST_WINDOW_BYTES)

    def has_room(self, length: int) -> bool:
        """Return True if a piece of `length` bytes may follow; one piece always may."""
        return not self.outstanding or self.outstanding_bytes + length <= self.window()

    def sent(self, key: Key, length: int, now: float) -> None:
        """A piece was handed to this path's socket."""
        if not self.outstanding:
            self.progress = self._busy_since = now
            self._span_start, self._span_bytes = now, 0
        self.outstanding[key] = (now, length)
        self.outstanding_bytes += length

    def acknowledged(self, key: Key, now: float) -> None:
        """The neighbour has this piece, by this path."""
        entry = self.outstanding.pop(key, None)
        if entry is None:
            return
        sent, length = entry
        self.outstanding_bytes -= length
        self.delivered_bytes += length
        self.shortest_s = min(self.shortest_s, max(now - sent, 1e-4))
        self.progress = now
        self._span_bytes += length
        span = now - self._span_start
        if span >= SPAN_S or not self.outstanding:
            if span > 0 and self._span_bytes >= LEAST_BYTES and (span >= SPAN_S or not self.rate):
                fresh = self._span_bytes / span
                self.rate = fresh if not self.rate else 0.5 * (self.rate + fresh)
            self._span_start, self._span_bytes = now, 0

    def not_seen(self, seconds: float, now: float) -> None:
        """Nobody looked at the path for the last `seconds`: what came in them could not be read."""
        self.progress = min(self.progress + seconds, now)
        self._span_start = min(self._span_start + seconds, now)
        self._busy_since = min(self._busy_since + seconds, now)
        self._slow_at = now

    def current_rate(self, now: float) -> float:
        """Rate of bytes a second that also sees a span in which little or nothing arrives."""
        span = now - self._span_start
        if self.outstanding and span > 2 * SPAN_S:
            return min(self.rate, self._span_bytes / span) if self.rate else self._span_bytes / span
        return self.rate


@dataclass(frozen=True, slots=True)
class Verdict:
    """A path is to be left."""

    path: Path
    why: str  # "dead" or "slow"
    after_s: float


def dead_paths(paths: Iterable[Path], unacknowledged: dict[str, bool], now: float) -> list[Verdict]:
    """Paths that deliver nothing.

    Args:
        paths: All paths to one neighbour.
        unacknowledged: By path name: whether the kernel waits for acknowledgements of segments it has sent. A
            receiver that does not read acknowledges all the same, so it is never taken for a dead path.
        now: Seconds.
    """
    paths = list(paths)
    stalled = [p for p in paths if p.outstanding and now - p.progress > DEAD_S and unacknowledged.get(p.name, False)]
    alive = [p for p in paths if p not in stalled and (not p.outstanding or now - p.progress < DEAD_S / 2)]
    least = DEAD_S if alive else ALL_DEAD_S
    return [Verdict(p, "dead", now - p.progress) for p in stalled if now - p.progress > least]


def slow_paths(paths: Iterable[Path], now: float) -> list[Verdict]:
    """Paths that deliver less than `SLOW_SHARE` of the median of the others for `SLOW_S`.

    Only time in which a path has something to deliver counts, over operations; another path that has nothing to do is
    taken at its last rate. At most one at a time: after it has left, the others are compared anew.
    """
    paths = list(paths)
    rates = {p.name: p.current_rate(now) for p in paths}
    verdicts = []
    for path in paths:
        since, path._slow_at = path._slow_at, now
        others = [rate for name, rate in rates.items() if name != path.name and rate]
        if not others or not path.outstanding or now - path._busy_since < 2 * SPAN_S:
            continue
        if rates[path.name] >= SLOW_SHARE * statistics.median(others):
            path._slow_for = 0.0
            continue
        path._slow_for += min(now - since, 2 * SPAN_S)
        if path._slow_for > SLOW_S:
            verdicts.append(Verdict(path, "slow", path._slow_for))
    return verdicts[:1]


def late_pieces(paths: Iterable[Path], now: float) -> list[Key]:
    """Pieces worth sending once more on a path that has nothing to do: oldest first.

    A piece is late when it is under way for longer than its path should need for all that it has, twice over, plus
    `QUEUE_S`.
    """
    late: list[tuple[float, Key]] = []
    for path in paths:
        expected = path.outstanding_bytes / path.rate if path.rate else 0.0
        allowed = 2 * expected + QUEUE_S + min(path.shortest_s, 0.2)
        late += [(sent, key) for key, (sent, _) in path.outstanding.items() if now - sent > allowed]
    return [key for _, key in sorted(late)]
