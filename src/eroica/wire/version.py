"""Which agents and collectors work together: those whose talk is one version apart do, others say so at once.

A change that the other side's decoder ignores or has a default for needs no new version. One that it would misread
does; the code then reads what the version before sent, too, until the next one.
"""

from __future__ import annotations

import msgspec

#: Version of what agents and the collector say to each other.
PROTOCOL = 1


class _Spoken(msgspec.Struct):
    protocol: int = 1  # what Eroica said before there was a number


def spoken_in(message: bytes) -> int:
    """The version that a message is of, whatever else is in it; ours where that cannot be told."""
    try:
        return msgspec.msgpack.decode(message, type=_Spoken).protocol
    except (ValueError, RecursionError):
        return PROTOCOL


def refusal(theirs: int, they: str, we: str) -> str:
    """Why two sides do not work together, in one sentence; "" where they do.

    Args:
        theirs: The other side's version.
        they: Who that is.
        we: Who we are.
    """
    if abs(theirs - PROTOCOL) <= 1:
        return ""
    older = they if theirs < PROTOCOL else we
    return f"{they} speaks version {theirs} and {we} version {PROTOCOL}, more than one release apart: upgrade {older}"
