"""Cron schedules as the CronJob controller reads them: five fields, names, steps, ranges, or a macro such as @daily."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
_DAYS = "sun mon tue wed thu fri sat"
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS.split(), 1)}),
    ("day of the week", 0, 6, {name: number for number, name in enumerate(_DAYS.split())}),
)


class ScheduleError(ValueError):
    """A schedule that cannot be read."""


def cron_fault(schedule: str) -> str | None:
    """Return why the schedule cannot be read, or None."""
    try:
        parse(schedule)
    except ScheduleError as error:
        return str(error)
    return None


def parse(schedule: str) -> tuple[list[set[int]], bool, bool]:
    """Return the values of the five fields, and whether the two day fields are unrestricted."""
    if re.match(r"(CRON_)?TZ=", schedule):
        raise ScheduleError("TZ= is not supported; use spec.timeZone")
    if schedule.startswith("@every "):
        if not re.fullmatch(r"@every ([0-9.]+(h|m|s|ms))+", schedule):
            raise ScheduleError("no duration after @every")
        return [set(range(low, high + 1)) for _, low, high, _ in _FIELDS], True, True
    fields = _MACROS.get(schedule, schedule).split()
    if len(fields) != 5:
        raise ScheduleError(f"expected 5 fields, found {len(fields)}")
    values = [_field(text, *field) for text, field in zip(fields, _FIELDS, strict=True)]
    return values, fields[2][0] in "*?", fields[4][0] in "*?"


def _field(text: str, what: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, what, {}) if slash else 1
        if span in ("*", "?"):
            first, last = low, high
        else:
            begin, dash, end = span.partition("-")
            first = _number(begin, what, names)
            last = _number(end, what, names) if dash else (high if slash else first)
        if first < low or last > high or first > last or step < 1:
            raise ScheduleError(f'"{part}" is outside of {low}-{high} for the {what}')
        values.update(range(first, last + 1, step))
    return values


def _number(text: str, what: str, names: dict[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not re.fullmatch(r"[0-9]+", text):
        raise ScheduleError(f'"{text}" is no number for the {what}')
    return int(text)


def fires(schedule: str, start: datetime, count: int) -> list[datetime]:
    """Return the next `count` times after `start` at which the schedule fires, looking at most five years ahead."""
    return list(_next(schedule, start, count))


def _next(schedule: str, start: datetime, count: int) -> Iterator[datetime]:
    (minutes, hours, days, months, weekdays), any_day, any_weekday = parse(schedule)
    day = start.replace(hour=0, minute=0, second=0, microsecond=0)
    for _ in range(366 * 5):
        in_month, in_week = day.day in days, (day.weekday() + 1) % 7 in weekdays
        # cron: where both day fields are restricted, one of them is enough
        right_day = (in_month and in_week) if any_day or any_weekday else (in_month or in_week)
        if day.month in months and right_day:
            for hour in sorted(hours):
                for minute in sorted(minutes):
                    moment = day.replace(hour=hour, minute=minute)
                    if moment > start:
                        yield moment
                        count -= 1
                        if count == 0:
                            return
        day += timedelta(days=1)
