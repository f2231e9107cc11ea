"""What a changed function means, in a sentence with numbers."""

from __future__ import annotations

from eroica.compare.conclusion import Told
from eroica.compare.reasons import uses_less
from eroica.model.pattern import FunctionKey
from eroica.model.shares import percent
from eroica.report.words import clean, milliseconds
from eroica.settings import Settings

_HELD_UP = {
    "cpu": "The same work at lower utilization: it waits for something, or other processes take its cores.",
    "": "The same work at lower utilization: slower hardware, or it waits for something.",
}


def describe(row: Told, key: FunctionKey, settings: Settings) -> str:
    """One or two sentences: what was counted, and what it means."""
    figures = row.figures
    if row.reason == "new":
        return f"Not there before; {_executions(row)}takes {milliseconds(figures.time_ms[1])} of each iteration now."
    if row.reason == "gone":
        return f"Took {milliseconds(figures.time_ms[0])} of each iteration; not there any more."
    if row.reason == "waiting":
        return _waiting(row)
    speed = " at the same speed" if abs(figures.length_ratio - 1) < 0.05 else ""
    meaning = {
        "more-work": f"More work{speed}.",
        "less-work": f"Less work{speed}.",
        "faster": f"{_use(row)}The same work takes less time.",
        "outside-contention": f"{_use(row)}{_contention(row)}",
        "slower": _slower(row, key, settings),
    }
    return f"{_counted(row)} {meaning[row.reason]}".strip()


def _executions(row: Told) -> str:
    figures = row.figures
    if not figures.counted or figures.count[1] <= 0:
        return ""
    return f"{_times(figures.count[1])} per iteration, "


def _times(count: float) -> str:
    digits = 0 if count >= 100 or count == round(count) else 1 if count >= 1 else 2
    return f"{count:.{digits}f} execution{'' if round(count, 2) == 1 else 's'}"


def _counted(row: Told) -> str:
    """Executions and their length, both sides."""
    figures = row.figures
    if not figures.counted:
        return f"From {milliseconds(figures.time_ms[0])} to {milliseconds(figures.time_ms[1])} per iteration."
    before, after = figures.count
    if min(before, after) <= 0:
        return ""
    if abs(figures.count_ratio - 1) < 0.005:
        number = f"As many executions as before ({_times(after).split()[0]} per iteration)"
    else:
        number = (
            f"{_factor(figures.count_ratio)} as many executions ({_number(before)} → {_number(after)} per iteration)"
        )
    each = figures.length_ratio
    each_is = "each as long as before" if abs(each - 1) < 0.02 else f"each takes {_factor(each)} as long"
    return f"{number}, {each_is}."


def _number(count: float) -> str:
    return f"{count:.0f}" if count >= 10 else f"{count:.2g}"


def _factor(ratio: float) -> str:
    return f"{ratio:.2f} times" if ratio < 10 else f"{ratio:.0f} times"


def _use(row: Told) -> str:
    before, after = row.figures.mu
    if before is None or after is None:
        return ""
    channel = clean(row.figures.resource, 24) or "its resource"
    return f"Use of {channel} {percent(before)} before, {percent(after)} now. "


def _contention(row: Told) -> str:
    inputs = "if batch size and inputs did not change"
    return f"Equal counts and equal utilization: {inputs}, another process on these devices pushes them aside."


def _slower(row: Told, key: FunctionKey, settings: Settings) -> str:
    figures = row.figures
    less = uses_less(figures, settings)
    longer = figures.length_ratio > 1.02 or not figures.counted
    if not longer:
        return f"{_use(row)}As much work as before, but less of it is hidden behind other work."
    if key.kind == "collective":
        return "Beyond waiting for its members: a slower link, or more data in each."
    if less is None and key.kind not in ("compute", "memory"):
        return "Utilization was not sampled: whether it does more, waits or is pushed aside cannot be told."
    if less is None:
        return (
            "Utilization was not sampled: slower hardware, larger inputs and other processes on the device cannot be "
            "told apart."
        )
    if less:
        return f"{_use(row)}{_HELD_UP.get(figures.resource, _HELD_UP[''])}"
    if key.kind == "python":
        return f"{_use(row)}Its own code takes longer: more is done in it, or the same in a slower way."
    return f"{_use(row)}Other operators are as fast as before: its inputs or its implementation changed."


def _waiting(row: Told) -> str:
    longer = "Longer" if row.change_ms > 0 else "Shorter"
    if not row.apart:
        return f"{longer}; without the other members, waiting cannot be told from the transfer itself."
    return (
        f"{longer} because members of the group arrive at different times than before; a symptom of the other changes."
    )
