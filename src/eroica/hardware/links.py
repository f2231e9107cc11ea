"""Traffic of a worker with each address it talks to: where data waits on its way to other hosts.

In a ring of hosts every link carries the same bytes at the pace of the slowest one. What differs is where the data
waits: a connection over a slow link has data under way nearly all the time, the others only for a moment. Small
messages wait too, for delayed acknowledgements of tens of milliseconds, so only a load of some kilobytes counts as
waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eroica.hardware.writer import Channel, SampleWriter, Track

if TYPE_CHECKING:
    from eroica.hardware.tcp import Connection

LEAST_LOAD_BYTES = 4096
_MOST_LINKS = 256
#: Name, unit and factor of each channel. The last two are integrals: their rates are a mean queue in bytes, and a mean
#: of round trip times busy time.
_CHANNELS = (
    ("link_sent", "B/s", 1.0),
    ("link_received", "B/s", 1.0),
    ("link_retransmits", "1/s", 1.0),
    ("link_busy", "s/s", 1e-6),
    ("link_held", "s/s", 1e-6),
    ("link_queued", "B", 1e-6),
    ("link_busy_rtt", "s", 1e-12),
)


class _Link:
    """Totals with one address."""

    def __init__(self, writer: SampleWriter, device: str, period_ns: int) -> None:
        made = [(Channel(name, device, unit, resolution_ns=period_ns), scale) for name, unit, scale in _CHANNELS]
        self._writer = writer
        self._tracks = [Track(writer, writer.declare(channel, "counter", scale)) for channel, scale in made]
        self._rtt = writer.declare(Channel("link_least_rtt", device, "s", resolution_ns=period_ns), scale=1e-6)
        self._least_rtt_us = 0
        self._total = [0] * len(_CHANNELS)

    def start(self, at_ns: int) -> None:
        """Nothing had moved at that moment."""
        for track in self._tracks:
            track.put(at_ns, 0)

    def put(self, now_ns: int, moves: Sequence[tuple[Connection, Connection]], since_us: int = 0) -> None:
        """Add what its connections moved since the last time; the busiest one counts as the link's busy time."""
        sent = received = retransmits = queued = 0
        busiest = (0, 0, 0)
        for before, one in moves:
            grown = max(0, one.bytes_acked - before.bytes_acked)
            sent += grown
            received += max(0, one.bytes_received - before.bytes_received)
            retransmits += max(0, one.retransmits - before.retransmits)
            queued += one.queued_bytes
            if max(grown, one.queued_bytes) >= LEAST_LOAD_BYTES:
                held = max(0, one.receive_limited_us - before.receive_limited_us)
                busiest = max(busiest, (max(0, one.busy_us - before.busy_us - held), held, one.rtt_us))
            self._see_rtt(now_ns, one.least_rtt_us)
        busy, held, rtt = busiest
        moved = (sent, received, retransmits, busy, held, queued * since_us, rtt * busy)
        self._total = [total + more for total, more in zip(self._total, moved, strict=True)]
        for track, total in zip(self._tracks, self._total, strict=True):
            track.put(now_ns, total)

    def _see_rtt(self, now_ns: int, rtt_us: int) -> None:
        if 0 < rtt_us < 1 << 31 and (not self._least_rtt_us or rtt_us < self._least_rtt_us):
            self._least_rtt_us = rtt_us
            self._writer.add(self._rtt, now_ns, rtt_us)

    def mark(self) -> None:
        for track in self._tracks:
            track.mark()


class Links:
    """Channels of one worker, device "<pid>/<local address>/<remote address>", for addresses of other hosts.

    "link_sent", "link_received" (bytes per second acknowledged and received), "link_retransmits" (segments per second),
    "link_busy" (seconds per second in which a connection with a load had data under way, less those in which the other
    side's window held it back), "link_held" (those), "link_queued" (bytes not yet acknowledged, mean), "link_busy_rtt"
    (round trip times busy time) and "link_least_rtt". An address appears once data moves.

    Args:
        writer: Where to.
        pid: The worker.
        period_ns: How often it is read.
    """

    def __init__(self, writer: SampleWriter, pid: int, period_ns: int) -> None:
        self._writer = writer
        self._pid = pid
        self._period_ns = period_ns
        self._links: dict[tuple[str, str], _Link] = {}
        self._at_ns = 0

    def update(self, now_ns: int, seen: Sequence[tuple[Connection | None, Connection]]) -> None:
        """Add what moved since the last time.

        Args:
            now_ns: CLOCK_MONOTONIC.
            seen: Each connection as it was and is; None where it is new, which then counts from now on.
        """
        moves: dict[tuple[str, str], list[tuple[Connection, Connection]]] = {key: [] for key in self._links}
        for before, one in seen:
            key = (one.local, one.remote)
            if before is not None and (key in moves or (_moved(before, one) and self._is_new_link(key))):
                moves.setdefault(key, []).append((before, one))
        since_us = (now_ns - self._at_ns) // 1000 if self._at_ns else 0
        for key, pairs in moves.items():
            if key not in self._links:
                device = f"{self._pid}/{key[0]}/{key[1]}"
                self._links[key] = _Link(self._writer, device, self._period_ns)
                self._links[key].start(self._at_ns)
            self._links[key].put(now_ns, pairs, since_us)
        self._at_ns = now_ns

    def _is_new_link(self, key: tuple[str, str]) -> bool:
        local, remote = key
        inside = not local or remote in (local, "::1") or remote.startswith("127.")
        return not inside and len(self._links) < _MOST_LINKS

    def mark(self) -> None:
        """Write down how long the present values have held."""
        for link in self._links.values():
            link.mark()


def _moved(before: Connection, one: Connection) -> bool:
    grown = one.bytes_acked - before.bytes_acked + one.bytes_received - before.bytes_received
    return max(grown, one.queued_bytes) >= LEAST_LOAD_BYTES
