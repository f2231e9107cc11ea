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


Output = Send | Close | Arrived | Note | Halt
