"""Messages over datagrams: fragments, selective acknowledgements, resending, in order. A machine without I/O."""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from dataclasses import dataclass

from prifi.errors import BadMessage, LinkLost

_DATA = struct.Struct("<BIB")
_ACK = struct.Struct("<BIQ")
#: Bytes of a message in one datagram; with all headers it stays below Ethernet's 1,500.
FRAGMENT_BYTES = 1350
#: Fragments that may be under way.
WINDOW = 512
#: Bounds of the time after which a fragment is sent again, seconds.
SHORTEST_RESEND_S, LONGEST_RESEND_S = 0.03, 0.5


@dataclass(slots=True)
class _Sent:
    packet: bytes
    at: float
    first: float
    tries: int = 1
    skipped: int = 0  # acknowledgements of later fragments


class Resender:
    """Both directions of a datagram link.

    Args:
        limit_s: Seconds without an acknowledgement after which the link is lost.

    Attributes:
        most_bytes: Longest message that the peer may send.
        most_early: Fragments kept that are ahead of a missing one.
    """

    most_bytes = 1 << 24
    most_early = 4 * WINDOW

    def __init__(self, limit_s: float = 10.0) -> None:
        self._limit = limit_s
        self._queue: deque[tuple[int, bytes]] = deque()
        self._flight: OrderedDict[int, _Sent] = OrderedDict()
        self._next = 0
        self._rtt = 0.1
        self._expected = 0
        self._early: dict[int, tuple[int, bytes]] = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._outgoing: list[bytes] = []

    def send(self, message: bytes, now: float) -> None:
        """Queue a message."""
        for at in range(0, max(len(message), 1), FRAGMENT_BYTES):
            last = at + FRAGMENT_BYTES >= len(message)
            self._queue.append((int(last), message[at : at + FRAGMENT_BYTES]))
        self._fill(now)

    def receive(self, packet: bytes, now: float) -> list[bytes]:
        """Take a datagram; return the messages that are complete by it, in order.

        Raises:
            BadMessage: The datagram is malformed.
        """
        if packet[:1] == b"\1" and len(packet) == _ACK.size:
            self._take_ack(packet, now)
            return []
        if packet[:1] != b"\0" or len(packet) < _DATA.size:
            raise BadMessage("a datagram that is malformed")
        _, number, last = _DATA.unpack_from(packet)
        if self._expected <= number < self._expected + self.most_early:
            self._early.setdefault(number, (last, packet[_DATA.size :]))
        messages = []
        while self._expected in self._early:
            last, part = self._early.pop(self._expected)
            self._expected += 1
            self._parts.append(part)
            self._size += len(part)
            if self._size > self.most_bytes:
                raise BadMessage("a message that is too long")
            if last:
                messages.append(b"".join(self._parts))
                self._parts, self._size = [], 0
        self._acknowledge()
        return messages

    def outgoing(self, now: float) -> list[bytes]:
        """Return the datagrams that are to be sent now.

        Raises:
            LinkLost: The peer has acknowledged nothing for too long.
        """
        for sent in self._flight.values():
            if now - sent.first > self._limit:
                raise LinkLost("the peer acknowledges nothing")
            if now >= sent.at + self._patience(sent.tries) or sent.skipped >= 3:
                sent.at, sent.skipped = now, 0
                sent.tries += 1
                self._outgoing.append(sent.packet)
        packets, self._outgoing = self._outgoing, []
        return packets

    def deadline(self) -> float | None:
        """Return when `outgoing` is wanted next."""
        return min((sent.at + self._patience(sent.tries) for sent in self._flight.values()), default=None)

    def _patience(self, tries: int) -> float:
        return min(max(2.5 * self._rtt, SHORTEST_RESEND_S) * 1.5 ** (tries - 1), LONGEST_RESEND_S)

    def _fill(self, now: float) -> None:
        while self._queue and len(self._flight) < WINDOW:
            last, part = self._queue.popleft()
            packet = _DATA.pack(0, self._next, last) + part
            self._flight[self._next] = _Sent(packet, now, now)
            self._next += 1
            self._outgoing.append(packet)

    def _acknowledge(self) -> None:
        bits = 0
        for number in self._early:
            if number - self._expected - 1 < 64:
                bits |= 1 << (number - self._expected - 1)
        self._outgoing.append(_ACK.pack(1, self._expected, bits))

    def _take_ack(self, packet: bytes, now: float) -> None:
        _, expected, bits = _ACK.unpack(packet)
        highest = expected + bits.bit_length()
        for number in list(self._flight):
            if number >= highest:
                break
            sent = self._flight[number]
            if number < expected or (number > expected and bits >> (number - expected - 1) & 1):
                if sent.tries == 1:
                    self._rtt += 0.125 * (now - sent.at - self._rtt)
                del self._flight[number]
            else:
                sent.skipped += 1
        self._fill(now)
