"""Small words that several sentences share: durations, lists of workers, lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.model.words import runs

_MOST_NAMED = 8
#: Of longer lists in a sentence so many are named.
FEW = 3
_LONGEST_NAME = 60


def format_ms(microseconds: float) -> str:
    """Format milliseconds with as many digits as matter: "41 ms", "3.2 ms", "0.04 ms"."""
    value = microseconds / 1e3
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:.{digits}f} ms"


def short_name(name: str) -> str:
    """Shorten a kernel's name by its template's arguments: "at::native::vectorized_elementwise_kernel<...>"."""
    head, bracket, _ = name.removeprefix("void ").partition("<")
    plain = f"{head}<...>" if bracket and head else name
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 3]}..."


def name_workers(ranks: Sequence[int], *, capital: bool = False) -> str:
    """Name workers, as in "worker 2", "workers 1 and 3", "300 workers (0, 1, 2, ...)"."""
    if len(ranks) > _MOST_NAMED:
        return f"{len(ranks)} workers ({', '.join(str(rank) for rank in ranks[:FEW])}, ...)"
    listed = ", ".join(str(rank) for rank in ranks[:-1])
    text = f"workers {listed} and {ranks[-1]}" if len(ranks) > 1 else f"worker {ranks[0]}"
    return text[0].upper() + text[1:] if capital else text


def list_numbers(numbers: Sequence[int]) -> str:
    """List rising numbers with runs drawn together: "0 to 4", "2, 3 and 7 to 9"."""
    parts = [
        f"{one} to {last}" if last > one + 1 else " and ".join(map(str, {one: 0, last: 0}))
        for one, last in runs(numbers)
    ]
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
