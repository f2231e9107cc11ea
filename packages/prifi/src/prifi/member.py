"""What clients and trustees have in common: a key, one link to the relay, and a watch for a relay that is silent."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from prifi import messages as msg
from prifi.errors import BadMessage
from prifi.group import Entropy
from prifi.identity import RELAY, Identity, Roster
from prifi.outputs import Close, Note, Output, Send
from prifi.parameters import Parameters


class Member(ABC):
    """A role with one link, to the relay. A machine without I/O: events in, outputs out.

    Args:
        identity: Own name and key.
        roster: Public keys of all members.
        parameters: Settings of the network.
        entropy: Source of random bytes.
    """

    def __init__(
        self, identity: Identity, roster: Roster, parameters: Parameters, entropy: Entropy = os.urandom
    ) -> None:
        self.identity = identity
        self.roster = roster
        self.parameters = parameters
        self._entropy = entropy
        self._last_epoch = 0
        self._silent_at: float | None = None
        self._doubted = False

    def connected(self, peer: str, now: float) -> list[Output]:
        """The link to the relay is there."""
        del peer
        self._heard(now)
        return []

    def disconnected(self, peer: str, now: float) -> list[Output]:
        """The link to the relay is gone: no epoch is left."""
        del peer, now
        self._silent_at = None
        return self._close("the relay cannot be reached")

    def handle(self, peer: str, message: msg.Message, now: float) -> list[Output]:
        """Take a message from the relay."""
        if peer != RELAY:
            return [Note("foreign", f"a message from {peer}, not from the relay, was ignored")]
        self._heard(now)
        return [Send((RELAY,), message)] if isinstance(message, msg.Ping) else self._take(message, now)

    def tick(self, now: float) -> list[Output]:
        """Leave a relay that is silent. The first expiry raises a doubt only: this process may have been away."""
        if self._silent_at is None or now < self._silent_at:
            return []
        if not self._doubted:
            self._silent_at, self._doubted = now + 1.0, True
            return []
        self._silent_at = None
        return [*self._close("the relay is silent"), Close(RELAY)]

    def deadline(self, now: float) -> float | None:
        """Return when `tick` is wanted."""
        del now
        return self._silent_at

    def _heard(self, now: float) -> None:
        self._silent_at, self._doubted = now + 2 * self.parameters.absent_s, False

    def _accept_epoch(self, epoch: int) -> None:
        """Take the number of a proposed epoch.

        Raises:
            BadMessage: It is not later than all before.
        """
        if epoch <= self._last_epoch:
            raise BadMessage(f"epoch {epoch} was proposed after epoch {self._last_epoch}")
        self._last_epoch = epoch

    @abstractmethod
    def _take(self, message: msg.Message, now: float) -> list[Output]:
        """Take a message other than a sign of life."""

    @abstractmethod
    def _close(self, reason: str) -> list[Output]:
        """Leave all epochs."""
