"""What can go wrong, as one tree.

TrainmoverError
├── UsageError            what was asked for cannot be done; the message says what can
├── UnsupportedError      a collective that this backend does not have
├── WireError             a peer says something else than was agreed
│   └── MismatchError     two members are in different collectives
├── RefusedError          a token, role, generation, version or code that does not fit
├── MoveError             a move or a recovery did not come about; the job is as before, or has ended
└── LinkError             the data path to a peer does not work
    ├── LinkLostError     the peer's connection is gone
    ├── LinkTimeoutError  nothing moved within the group's time-out
    └── InterruptedLinkError  the controller has called the members together
"""

from __future__ import annotations


class TrainmoverError(Exception):
    """Whatever this package raises."""


class UsageError(TrainmoverError):
    """What was asked for cannot be done; the message says what can."""


class UnsupportedError(TrainmoverError):
    """A collective that this backend does not have."""


class WireError(TrainmoverError):
    """A peer says something else than was agreed."""


class MismatchError(WireError):
    """Two members of a group are in different collectives."""


class RefusedError(TrainmoverError):
    """A token, role, generation, version or code that does not fit."""


class MoveError(TrainmoverError):
    """A move or a recovery did not come about."""


class LinkError(TrainmoverError):
    """The data path to a peer does not work.

    Args:
        message: What happened.
        peer: The peer's global rank, -1 where no single peer is to blame.
    """

    def __init__(self, message: str, peer: int = -1) -> None:
        super().__init__(message)
        self.peer = peer


class LinkLostError(LinkError):
    """The peer's connection is gone."""


class LinkTimeoutError(LinkError):
    """Nothing moved within the group's time-out."""


class InterruptedLinkError(LinkError):
    """The controller has called the members together."""
