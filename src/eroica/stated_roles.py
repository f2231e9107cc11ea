"""Roles that a person states in the setting `roles`: "actor=0-3;critic=4-7". Standard library only."""

from __future__ import annotations

from eroica.errors import UsageError

#: More workers than any job has; a range beyond is a slip of the hand.
_MOST_RANKS = 1_000_000
_FORM = "write names with ranks, as in 'actor=0-3;critic=4,6,8-11'"


def parse_roles(text: str) -> dict[str, frozenset[int]]:
    """Global ranks of each stated role, in the order of the text; empty for an empty text.

    Args:
        text: Roles separated by ";", each a name, "=", and ranks or ranges of them ("0-3") separated by ",".

    Raises:
        UsageError: The text has another form, names a role twice, or puts a rank into two roles.
    """
    roles: dict[str, frozenset[int]] = {}
    owners: dict[int, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, sign, listed = (piece.strip() for piece in part.partition("="))
        if not sign or not name or not listed:
            raise UsageError(f"roles cannot be {text!r}: {part!r} is no name with ranks; {_FORM}")
        if name in roles:
            raise UsageError(f"roles cannot be {text!r}: {name!r} stands there twice; list all its ranks in one place")
        ranks = frozenset(rank for piece in listed.split(",") for rank in _ranks(piece.strip(), text))
        both = sorted(ranks & owners.keys())
        if both:
            first = both[0]
            raise UsageError(f"roles cannot be {text!r}: rank {first} is in both {owners[first]!r} and {name!r}")
        owners.update(dict.fromkeys(ranks, name))
        roles[name] = ranks
    return roles


def check_ranks(roles: dict[str, frozenset[int]], workers: int) -> None:
    """Refuse ranks that a job of so many workers does not have.

    Raises:
        UsageError: Some role has such a rank.
    """
    for name, ranks in roles.items():
        unknown = sorted(rank for rank in ranks if rank >= workers)
        if unknown:
            raise UsageError(
                f"roles give rank {unknown[0]} to {name!r}, but this job has ranks 0 to {workers - 1} only"
            )


def _ranks(piece: str, text: str) -> range:
    first, dash, last = (end.strip() for end in piece.partition("-"))
    ends = (first, last) if dash else (first, first)
    if not all(end.isascii() and end.isdigit() for end in ends):
        raise UsageError(f"roles cannot be {text!r}: {piece!r} is no rank and no range of ranks; {_FORM}")
    low, high = int(ends[0]), int(ends[1])
    if low > high or high >= _MOST_RANKS:
        raise UsageError(f"roles cannot be {text!r}: the range {piece!r} is not possible; {_FORM}")
    return range(low, high + 1)
