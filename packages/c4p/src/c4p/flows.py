"""Flow control of the connections to one neighbour, and detection of dead and slow ones. Pure state without I/O.

Each flow takes a new piece while it has room in its window, so a faster flow takes more. The window holds what the flow
delivers in its shortest round trip plus `QUEUE_S`. A flow is *dead* when nothing of it has been acknowledged for
`DEAD_S` while the kernel has unacknowledged segments of it and another flow goes on (or has nothing to do);
it is *slow* when it delivers less than `SLOW_SHARE` of the median flow over `SLOW_S`.

Source:
    C4, section on C4P's dynamic load balance: completion times per queue pair are watched and work moves between them.
    Deviation: pieces are pulled by window instead of being re-planned after the fact; thresholds are ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

DEAD_S = 0.3
KERNEL_S = 0.2  # for so long the kernel must have waited for an acknowledgement, too
ALL_DEAD_S = 1.0
SLOW_S = 0.4
SLOW_SHARE = 0.3
QUEUE_S = 0.035
FIRST_WINDOW_BYTES = 512 * 1024
#: Several pieces: a congestion control that is never given more than it has sent finds no faster rate.
LEAST_WINDOW_BYTES = 384 * 1024
LARGEST_WINDOW_BYTES = 8 * 1024 * 1024
SPAN_S = 0.05
LEAST_BYTES = 64 * 1024  # fewer say nothing about a flow's rate

Key = tuple[int, int]  # sequence of the operation, number of the piece


@dataclass(slots=True)
class Flow:
    """Flow control and rate of one connection.

    Attributes:
        name: Names the flow in events.
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
        """Return the bytes that may be in flight."""
        if not self.rate:
            return FIRST_WINDOW_BYTES
        wanted = int(self.rate * (min(self.shortest_s, 0.2) + QUEUE_S))
        return min(max(wanted, LEAST_WINDOW_BYTES), LARGEST_WINDOW_BYTES)

    def has_room(self, length: int) -> bool:
        """Return True if a piece of `length` bytes may follow; one piece always may."""
        return not self.outstanding or self.outstanding_bytes + length <= self.window()

    def sent(self, key: Key, length: int, now: float) -> None:
        """Record that a piece was handed to this flow's socket."""
        if not self.outstanding:
            self.progress = self._busy_since = now
            self._span_start, self._span_bytes = now, 0
        self.outstanding[key] = (now, length)
        self.outstanding_bytes += length

    def acknowledged(self, key: Key, now: float) -> None:
        """Record that the neighbour has acknowledged a piece of this flow."""
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
        """Leave the last `seconds`, in which nothing was read, out of all times."""
        self.progress = min(self.progress + seconds, now)
        self._span_start = min(self._span_start + seconds, now)
        self._busy_since = min(self._busy_since + seconds, now)
        self._slow_at = now

    def current_rate(self, now: float) -> float:
        """Return the rate in bytes a second, lowered by a present span in which little arrives."""
        span = now - self._span_start
        if self.outstanding and span > 2 * SPAN_S:
            return min(self.rate, self._span_bytes / span) if self.rate else self._span_bytes / span
        return self.rate


@dataclass(frozen=True, slots=True)
class Verdict:
    """A flow that must leave its path."""

    flow: Flow
    why: str  # "dead" or "slow"
    after_s: float


def dead_flows(flows: Iterable[Flow], unacknowledged: dict[str, bool], now: float) -> list[Verdict]:
    """Return the flows that deliver nothing.

    Args:
        flows: All flows to one neighbour.
        unacknowledged: By flow name: whether the kernel waits for acknowledgements of segments it has sent. A
            receiver that does not read acknowledges all the same, so it is never taken for a dead flow.
        now: Seconds.
    """
    flows = list(flows)
    stalled = [p for p in flows if p.outstanding and now - p.progress > DEAD_S and unacknowledged.get(p.name, False)]
    alive = [p for p in flows if p not in stalled and (not p.outstanding or now - p.progress < DEAD_S / 2)]
    least = DEAD_S if alive else ALL_DEAD_S
    return [Verdict(p, "dead", now - p.progress) for p in stalled if now - p.progress > least]


def slow_flows(flows: Iterable[Flow], now: float) -> list[Verdict]:
    """Return the flows that deliver less than `SLOW_SHARE` of the median of the others for `SLOW_S`.

    Only time in which a flow has something to deliver counts, over operations; another flow that has nothing to do is
    taken at its last rate. At most one at a time: after it has left, the others are compared anew.
    """
    flows = list(flows)
    rates = {p.name: p.current_rate(now) for p in flows}
    verdicts = []
    for flow in flows:
        since, flow._slow_at = flow._slow_at, now
        others = [rate for name, rate in rates.items() if name != flow.name and rate]
        if not others or not flow.outstanding or now - flow._busy_since < 2 * SPAN_S:
            continue
        if rates[flow.name] >= SLOW_SHARE * statistics.median(others):
            flow._slow_for = 0.0
            continue
        flow._slow_for += min(now - since, 2 * SPAN_S)
        if flow._slow_for > SLOW_S:
            verdicts.append(Verdict(flow, "slow", flow._slow_for))
    return verdicts[:1]


def late_pieces(flows: Iterable[Flow], now: float) -> list[Key]:
    """Return the late pieces, which an idle flow may send once more, oldest first.

    A piece is late when it is in flight for longer than its flow should need for all that it has, twice over, plus
    `QUEUE_S`.
    """
    late: list[tuple[float, Key]] = []
    for flow in flows:
        expected = flow.outstanding_bytes / flow.rate if flow.rate else 0.0
        allowed = 2 * expected + QUEUE_S + min(flow.shortest_s, 0.2)
        late += [(sent, key) for key, (sent, _) in flow.outstanding.items() if now - sent > allowed]
    return [key for _, key in sorted(late)]
