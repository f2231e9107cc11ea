"""What a role wants done after an event. Roles do no I/O; their driver carries this out in order."""

from __future__ import annotations

from dataclasses import dataclass

from prifi.messages import Finding, Message
from prifi.streams import Event


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to members, `after` seconds after the event's arrival."""

    to: tuple[str, ...]
    message: Message
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """Something happened on a stream of users' data."""

    event: Event


@dataclass(frozen=True, slots=True)
class Note:
    """A fact for the role's log. It names members only where blame or absence is the fact itself."""

    kind: str
    text: str
    party: str = ""


def blame_note(finding: Finding) -> Note:
    """Return the note of a finding; an absent party is not blamed."""
    kind = "absent" if finding.outcome == "absent" else "blame"
    return Note(kind, f"{finding.party} {finding.outcome}: {finding.reason}", finding.party)


@dataclass(frozen=True, slots=True)
class Halt:
    """The role ends: going on would not be safe."""

    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the link to a member, after what was sent before."""

    peer: str


class Watch:
    """Notices a relay that says nothing though its link is up.

    The first expiry only raises a doubt, since this process itself may have been away.

    Args:
        limit_s: Seconds of silence that are too long.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit = limit_s
        self._until: float | None = None
        self._doubted = False

    def heard(self, now: float) -> None:
        """The relay has said something."""
        self._until, self._doubted = now + self._limit, False

    def stop(self) -> None:
        """The link is gone."""
        self._until = None

    def deadline(self) -> float | None:
        """Return when `expired` is wanted."""
        return self._until

    def expired(self, now: float) -> bool:
        """Return whether the relay has been silent for too long."""
        if self._until is None or now < self._until:
            return False
        if self._doubted:
            self._until = None
            return True
        self._until, self._doubted = now + 1.0, True
        return False


Output = Send | Close | Arrived | Note | Halt
