"""Everything that this package raises.

PrifiError
├── BadConfig       a setting, roster or key file that cannot be used; the message says what would do
├── BadMessage      a message that is malformed, of another version, too long, or out of place
├── BadProof        a signature, a zero-knowledge proof or a shuffle hop that does not hold
├── PadReuse        a pad was asked for twice; nothing was encrypted
├── Unsafe          going on would weaken the protection of the user; the role has stopped
├── LinkLost        the other end of a link is away, or is not who it should be
└── LabError        network namespaces or a tool of the lab are missing
"""

from __future__ import annotations


class PrifiError(Exception):
    """Base of all errors of this package."""


class BadConfig(PrifiError, ValueError):
    """A setting, roster or key file that cannot be used."""


class BadMessage(PrifiError, ValueError):
    """A message that is malformed, of another version, too long, or out of place."""


class BadProof(PrifiError):
    """A signature, proof or shuffle hop that does not hold."""


class PadReuse(PrifiError):
    """A pad was asked for twice; nothing was encrypted."""


class Unsafe(PrifiError):
    """Going on would weaken the user's protection; the role has stopped."""


class LinkLost(PrifiError, ConnectionError):
    """The other end of a link is away, or is not who it should be."""


class LabError(PrifiError, RuntimeError):
    """The lab cannot run on this machine."""
