"""Cron schedules as the CronJob controller reads them: five fields, names, steps, ranges, or a macro such as @daily."""

import itertools
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

_MACROS = {"yearly": "0 0 1 1 *", "annually": "0 0 1 1 *", "monthly": "0 0 1 * *", "weekly": "0 0 * * 0"}
_MACROS |= {"daily": "0 0 * * *", "midnight": "0 0 * * *", "hourly": "0 * * * *"}
_MONTHS, _DAYS = "jan feb mar apr may jun jul aug sep oct nov dec", "sun mon tue wed thu fri sat"
#: Name, least and greatest value, and names of values, of each field.
_FIELDS: tuple[tuple[str, int, int, list[str]], ...] = (
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day of the month", 1, 31, []),
    ("month", 1, 12, _MONTHS.split()),
    ("day of the week", 0, 6, _DAYS.split()),
)


class ScheduleError(ValueError):
    """A schedule that cannot be read."""


def parse(schedule: str) -> tuple[list[set[int]], bool]:
    """Return the values of the five fields, and whether one of the two day fields is unrestricted."""
    if re.match(r"(CRON_)?TZ=", schedule or ""):
        raise ScheduleError("TZ= is not supported; use spec.timeZone")
    if re.fullmatch(r"@every ([0-9.]+(h|m|s|ms))+", schedule or ""):
        return [set(range(low, high + 1)) for _, low, high, _ in _FIELDS], True
    fields = _MACROS.get((schedule or "")[1:], schedule or "").split()
    if len(fields) != 5:
        raise ScheduleError(f"expected 5 fields, found {len(fields)}")
    values = [_field(text, *field) for text, field in zip(fields, _FIELDS, strict=True)]
    return values, fields[2][0] in "*?" or fields[4][0] in "*?"


def _field(text: str, what: str, low: int, high: int, names: list[str]) -> set[int]:
    def number(word: str) -> int:
        if word.lower() in names:
            return names.index(word.lower()) + low
        if not re.fullmatch(r"[0-9]+", word):
            raise ScheduleError(f'"{word}" is no number for the {what}')
        return int(word)

    values: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        begin, dash, end = span.partition("-")
        first = low if span in ("*", "?") else number(begin)
        last = high if span in ("*", "?") or (slash and not dash) else number(end) if dash else first
        if not low <= first <= last <= high or (slash and number(step) < 1):
            raise ScheduleError(f'"{part}" is outside of {low}-{high} for the {what}')
        values.update(range(first, last + 1, number(step) if slash else 1))
    return values


def fires(schedule: str, start: datetime, count: int) -> list[datetime]:
    """Return the next `count` times after `start` at which the schedule fires, looking at most five years ahead."""
    return list(itertools.islice(_next(schedule, start), count))


def _next(schedule: str, start: datetime) -> Iterator[datetime]:
    (minutes, hours, days, months, weekdays), one_open = parse(schedule)
    for ahead in range(366 * 5):
        day = start.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=ahead)
        in_month, in_week = day.day in days, (day.weekday() + 1) % 7 in weekdays
        # cron: where both day fields are restricted, one of them is enough
        if day.month in months and ((in_month and in_week) if one_open else (in_month or in_week)):
            for hour, minute in itertools.product(sorted(hours), sorted(minutes)):
                if (moment := day.replace(hour=hour, minute=minute)) > start:
                    yield moment
