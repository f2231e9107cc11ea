"""The package's errors, as one tree."""

from __future__ import annotations


class TrainmoverError(Exception):
    """Base class of this package's errors."""


class UsageError(TrainmoverError):
    """The arguments cannot be used; the message says which can."""


class UnsupportedError(TrainmoverError):
    """This backend does not have the collective."""


class WireError(TrainmoverError):
    """A peer does not follow the protocol."""


class MismatchError(WireError):
    """Two members of a group call different collectives."""


class RefusedError(TrainmoverError):
    """A token, role, generation, version or code does not fit."""


class MoveError(TrainmoverError):
    """A move or a recovery failed."""


class LinkError(TrainmoverError):
    """A connection to a peer does not work.

    Args:
        message: What happened.
        peer: The peer's global rank, -1 where no single peer is to blame.
    """

    def __init__(self, message: str, peer: int = -1) -> None:
        super().__init__(message)
        self.peer = peer


class LinkLostError(LinkError):
    """A peer's connection has ended."""


class LinkTimeoutError(LinkError):
    """Nothing moved within the group's timeout."""
