"""Keep the newest state of every topic of a page, and when it changed, without a queue for each page.

A topic is one thing that a page shows: the job's status, one window, the notes. Whoever has seen everything up to
version 41 gets each topic that has changed since, once, as it is now. So a slow reader costs no memory and never sees a
backlog, and one that comes back later is told only what it missed.
"""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """Versions up to which a reader has seen everything.

    Attributes:
        version: Of the feed.
        pace: Of the iteration times (`eroica.collector.pace`).
    """

    version: int = 0
    pace: int = 0


class Feed:
    """Topics of one collector.

    Args:
        epoch: Names this collector's life; positions of another one mean nothing here.
    """

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.version = 0
        self._topics: dict[str, tuple[int, bytes]] = {}

    def put(self, topic: str, event: str, data: bytes) -> None:
        """Say what a topic is now; nothing happens if it was told before.

        Args:
            topic: Its name.
            event: What pages know it as; several topics may share one.
            data: JSON on one line.
        """
        framed = frame(event, data)
        known = self._topics.get(topic)
        if known is None or known[1] != framed:
            self.version += 1
            self._topics[topic] = self.version, framed

    def keep(self, prefix: str, most: int) -> None:
        """Forget the oldest topics whose name begins like this, beyond so many."""
        names = [name for name in self._topics if name.startswith(prefix)]
        for name in names[: max(len(names) - most, 0)]:
            del self._topics[name]

    def since(self, version: int) -> list[bytes]:
        """Events for who has seen everything up to a version, in the order of change."""
        return [framed for at, framed in sorted(self._topics.values()) if at > version]

    def identify(self, position: Position) -> bytes:
        """The line that goes in front of an event: `Last-Event-ID` after it."""
        return f"id: {self.epoch}.{position.version}.{position.pace}\n".encode()

    def position(self, event_id: str) -> Position | None:
        """Return the position of a reader that gives this id; None if that is no position in this feed."""
        epoch, _, rest = event_id.partition(".")
        numbers = rest.split(".")
        if epoch != self.epoch or len(numbers) != 2 or not all(n.isascii() and n.isdigit() for n in numbers):
            return None
        if any(len(number) > 15 for number in numbers):
            return None
        version, pace = map(int, numbers)
        return Position(version, pace) if version <= self.version else None


def frame(event: str, data: bytes) -> bytes:
    """One server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), data)
