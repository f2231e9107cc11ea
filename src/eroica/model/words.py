"""How names, numbers and lists of workers are written for people. Names are input from the job: never trusted."""

from __future__ import annotations

import signal
import unicodedata
from collections.abc import Iterable, Sequence

from eroica.model.look import Ending
from eroica.model.shares import percent
from eroica.model.verdict import Recurrence

_LONGEST_NAME = 160
_LONGEST_SENTENCE = 600
_MOST_RANGES = 8


def clean(text: str, limit: int = _LONGEST_NAME) -> str:
    """Return `text` on one line, without control, format and bidirectional characters, at most `limit` characters.

    What is too long loses its middle: both ends of a kernel's or path's name say something.
    """
    plain = "".join(_visible(character) for character in text[: 4 * limit + 4])
    plain = " ".join(plain.split())
    if len(plain) <= limit and len(text) <= 4 * limit + 4:
        return plain
    end = limit // 3
    tail = " ".join("".join(_visible(character) for character in text[-2 * end :]).split())[-end:]
    return f"{plain[: limit - end - 1]}…{tail}"


def line(text: str) -> str:
    """Return `text` with its spaces on one line, without characters that a terminal would obey."""
    return "".join(map(_visible, text))


def sentence(text: str) -> str:
    """Return `text` cleaned, with the room that a sentence needs."""
    return clean(text, _LONGEST_SENTENCE)


def _visible(character: str) -> str:
    if character.isascii():
        return character if character.isprintable() else " "
    kind = unicodedata.category(character)
    if kind in ("Cf", "Cs", "Mn", "Me"):
        return ""
    return " " if kind[0] in "CZ" else character


def worker_list(workers: Sequence[int], noun: str = "worker") -> str:
    """Write global ranks as at most eight ranges: "worker 2", "workers 0–3, 7, 8"."""
    ranges = runs(sorted(set(workers)))
    if not ranges:
        return f"no {noun}"
    words = [_range(first, last) for first, last in ranges[:_MOST_RANGES]]
    more = f" and more, {len(set(workers))} in all" if len(ranges) > _MOST_RANGES else ""
    return f"{noun}{'s' if len(set(workers)) > 1 else ''} {', '.join(words)}{more}"


def window_list(windows: Sequence[int]) -> str:
    """Write window numbers as ranges: "window 2", "windows 2–4, 7"."""
    return worker_list(windows, "window")


def signal_name(number: int) -> str:
    """Name a signal as people know it."""
    known = {one.value: one.name for one in signal.Signals}
    return known.get(number, f"signal {number}")


def ending_words(ending: Ending | None) -> str:
    """Say how a worker's process ended; what is no end in order stands out."""
    if ending is None or ending.kind == "signed-off":
        return "ended in order"
    if ending.out_of_memory:
        return "KILLED for want of memory"
    if ending.kind == "unknown":
        return "GONE, nobody saw how"
    return f"ENDED {'by signal' if ending.kind == 'signal' else 'with status'} {ending.number}"


def plural(number: int, noun: str) -> str:
    """Write a number and what it counts: "1 worker", "2 workers"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def history(recurrence: Recurrence) -> str:
    """Say how often a cause was seen, and whether it grew; no full stop."""
    seen, looked = len(recurrence.windows), recurrence.looked
    if recurrence.kind == "single":
        return "Seen in the only window that could show it"
    if recurrence.kind == "one-off":
        return f"Seen in one of {looked} windows ({window_list(recurrence.windows)})"
    number = f"{seen} of {looked}" if seen < looked else "both" if seen == 2 else f"all {seen}"
    where = f"Seen in {number} windows ({window_list(recurrence.windows).split(' ', 1)[-1]})"
    return where + {
        "rotating": ", on other workers each time",
        "worsening": _growth(recurrence),
    }.get(recurrence.kind, "")


def _growth(recurrence: Recurrence) -> str:
    costs = [milliseconds(cost) for cost in recurrence.costs_ms if cost is not None]
    rate = recurrence.growth_ms_per_hour
    if len(costs) < 2 or rate is None:
        return ", and growing"
    return f", and growing by {milliseconds(rate)} an hour: {costs[0]} of an iteration at first, {costs[-1]} at last"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}{', ' if last == first + 1 else '–'}{last}"


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of rising numbers."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def change(before: float, now: float) -> str:
    """Write how much longer something takes: "+34 %", from ten times on "24 times"."""
    ratio = now / before
    return f"{ratio:.0f} times" if ratio >= 10 else f"{100 * (ratio - 1):+.0f} %"


def milliseconds(value: float) -> str:
    """Write milliseconds with about three significant digits, as seconds from 10,000 ms on."""
    if abs(value) >= 10_000:
        return f"{value / 1000:.1f} s"
    digits = 0 if abs(value) >= 100 or not value else 1 if abs(value) >= 1 else 2
    return f"{value:.{digits}f} ms"


def seconds(value: float) -> str:
    """Write seconds, below one second as milliseconds."""
    return f"{value:.1f} s" if value >= 1 else milliseconds(1000 * value)


def byte_size(value: int) -> str:
    """Write bytes in decimal units."""
    size = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def amount(value: float, unit: str) -> str:
    """Write a number with its unit; fractions as percent."""
    if unit.startswith("fraction"):
        return percent(value)
    return f"{value:.3g} {clean(unit, 20)}".strip()
