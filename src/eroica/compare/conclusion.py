"""The word, the sentence and the texts of a comparison, and the doubts that keep it from saying "equal"."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import msgspec
import numpy as np

from eroica.compare.changes import Change, Deltas, Figures, uses_less
from eroica.compare.table import Table
from eroica.model.comparison import ChangeReason, ComparisonWord
from eroica.model.pattern import FunctionKey
from eroica.model.shares import percent
from eroica.model.words import change as relative
from eroica.model.words import clean, milliseconds, worker_list
from eroica.settings import Settings

FEWEST_ITERATIONS = 2
#: Least standard errors of a changed iteration.
ITERATION_ERRORS = 3.5
#: Least standard errors of a function that decides the word although iterations do not show it.
CLEAR_ERRORS = 4.0
#: Probability below which chance does not sort all iterations of one run before all of the other's.
_SORTED_BY_CHANCE = 0.02
SLOWER = frozenset({"slower", "more-work", "outside-contention", "new"})
#: Standard errors from which a change may be no chance.
_SUSPICIOUS_ERRORS = 2.0
#: ... if it is also so many times the least gain: one comparison in twenty lies beyond two errors by chance.
_SMALL = 2.0
#: Multiple of the least gain from which iterations are never called equal.
_NEVER_EQUAL = 3.0
#: Noise, as a part of the iteration, from which runs that differ cannot be called equal.
_BLIND = 0.5
_HELD_UP = {
    "cpu": "The same work at lower utilization: it waits for something, or other processes take its cores.",
    "": "The same work at lower utilization: slower hardware, or it waits for something.",
}


class Told(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A change with its reason; `apart`: waiting was separated from the transfer itself."""

    change: Change
    figures: Figures
    reason: ChangeReason
    name: str
    workers: tuple[int, ...]
    apart: bool = True

    @property
    def change_ms(self) -> float:
        """Mean change over the units."""
        return float(self.change.change_us.mean()) / 1e3


def iteration_changed(deltas: Deltas, settings: Settings) -> int:
    """Return 1 if iterations got longer beyond noise and the least gain, -1 if shorter, else 0."""
    before, after = deltas.before, deltas.after
    change = after.iteration_us - before.iteration_us
    error = float(np.hypot(before.iteration_error_us, after.iteration_error_us))
    is_clear = abs(change) >= ITERATION_ERRORS * error or are_apart(deltas)
    return int(np.sign(change)) if is_clear and abs(change) >= settings.min_gain * before.iteration_us else 0


def are_apart(deltas: Deltas) -> bool:
    """Return whether all iterations of one run are longer than all of the other, and chance hardly sorts them so."""
    before_I, after_I = (side.fleet.iteration_us.mean(axis=0) for side in (deltas.before, deltas.after))
    if not before_I.size or not after_I.size:
        return False
    is_sorted = before_I.max() < after_I.min() or after_I.max() < before_I.min()
    return bool(is_sorted) and comb(before_I.size + after_I.size, before_I.size) * _SORTED_BY_CHANCE >= 1


def choose_word(deltas: Deltas, told: Sequence[Told], too_little: str, settings: Settings) -> ComparisonWord:
    """Return the word of the comparison."""
    if too_little:
        return "undetermined"
    direction = iteration_changed(deltas, settings)
    if direction > 0 or any(is_regression(row, deltas, settings) for row in told):
        return "regression"
    return "improvement" if direction < 0 or any(is_improvement(row, deltas, settings) for row in told) else "equal"


def is_regression(row: Told, deltas: Deltas, settings: Settings) -> bool:
    """Return whether a function clearly got slower, and its workers are busy for longer."""
    return _is_clear(row) and is_slower(row, deltas, settings)


def is_slower(row: Told, deltas: Deltas, settings: Settings) -> bool:
    """Return the same, clear or not."""
    least_us = settings.min_gain * deltas.before.iteration_us
    return row.reason in SLOWER and row.change_ms > 0 and _busy_change(row, deltas) >= least_us


def is_improvement(row: Told, deltas: Deltas, settings: Settings) -> bool:
    """Return whether a function clearly got faster, and its workers are busy for less."""
    least_us = settings.min_gain * deltas.before.iteration_us
    return _is_clear(row) and row.change_ms < 0 and _busy_change(row, deltas) <= -least_us


def _is_clear(row: Told) -> bool:
    """Return whether a change counts although iterations do not show it."""
    return row.reason != "waiting" and row.change.strength >= CLEAR_ERRORS


def _busy_change(row: Told, deltas: Deltas) -> float:
    """Return by how much the units are busy for longer, without waiting; mean over them."""
    units = list(row.change.units)
    busy_us = (deltas.after.busy_us - deltas.before.busy_us)[units]
    transfer_us = np.nan_to_num((deltas.after.transfer_us - deltas.before.transfer_us)[units])
    return float((np.nan_to_num(busy_us) + transfer_us).mean())


def explained_share(deltas: Deltas, told: Sequence[Told], settings: Settings) -> float | None:
    """Return the share of the iteration's change that the rows explain, on the worker with the most."""
    if not iteration_changed(deltas, settings):
        return None
    total_us = deltas.after.iteration_us - deltas.before.iteration_us
    sums_U = np.zeros(deltas.change_us.shape[1])
    for row in told:
        if row.reason != "waiting":
            sums_U[list(row.change.units)] += row.change.change_us
    return round(float(np.clip(sums_U / total_us, 0.0, 1.0).max(initial=0.0)), 3) + 0.0


def summarize(deltas: Deltas, told: Sequence[Told], word: ComparisonWord, too_little: str, settings: Settings) -> str:
    """Return the sentence of the comparison."""
    before, after = deltas.before.iteration_us / 1e3, deltas.after.iteration_us / 1e3
    if word == "undetermined":
        return f"Too little to tell: {too_little}."
    direction = iteration_changed(deltas, settings)
    iterations = f"iterations take {milliseconds(after)} instead of {milliseconds(before)}"
    if before > 0:
        iterations += f" ({relative(before, after)})"
    if direction:
        wanted = [row for row in told if row.reason != "waiting" and row.change_ms * direction > 0]
        return f"{iterations[0].upper()}{iterations[1:]}: {_main(wanted, _only_waiting(told, direction))}."
    same = f"Iterations are as long as before ({milliseconds(before)} and {milliseconds(after)})"
    if abs(after - before) >= settings.min_gain * before:
        same = f"{iterations[0].upper()}{iterations[1:]}, which is within their noise"
    if word == "regression":
        return f"{same}, but {_main([row for row in told if is_regression(row, deltas, settings)], '')}."
    if word == "improvement":
        return f"{same}, but {_main([row for row in told if is_improvement(row, deltas, settings)], '')}."
    others = [row for row in told if row.reason != "waiting"]
    if others:
        so = "what changed evens out" if _evens_out(others, deltas, settings) else "what changed does not show in them"
        return f"{same}; {so}: {_main(others, '')}."
    return f"{same}, and no function changed beyond noise by {percent(settings.min_gain)} of that or more."


def _evens_out(rows: Sequence[Told], deltas: Deltas, settings: Settings) -> bool:
    """Return whether longer and shorter add up to less than the least gain on every worker."""
    sums_U = np.zeros(deltas.change_us.shape[1])
    for row in rows:
        sums_U[list(row.change.units)] += row.change.change_us
    return bool((np.abs(sums_U) < settings.min_gain * deltas.before.iteration_us).all())


def _only_waiting(told: Sequence[Told], direction: int) -> str:
    """Return the clause for an iteration that no function explains."""
    waits = [row for row in told if row.reason == "waiting" and row.change_ms * direction > 0]
    if not waits:
        return "no single function explains it"
    if not all(row.apart for row in waits):
        return (
            f"{_main(waits, '')}; who is waited for, or whether the transfer changed, takes the other workers' patterns"
        )
    return "workers wait differently for each other"


def _main(rows: Sequence[Told], otherwise: str) -> str:
    if not rows:
        return otherwise
    first = rows[0]
    count = len(rows) - 1
    more = f"; {count} other change{'s' if count > 1 else ''} below" if count else ""
    return f"{clean(first.name, 80)} {_predicate(first)} on {worker_list(first.workers)}{more}"


def _predicate(row: Told) -> str:
    plural = len(row.change.functions) > 1
    amount = milliseconds(abs(row.change_ms))
    if row.reason == "new":
        return f"is new and takes {amount}"
    if row.reason == "gone":
        return f"is gone, which saves {amount}"
    verb = "take" if plural else "takes"
    words = {
        "more-work": f"{verb} {amount} more, for more work",
        "less-work": f"{verb} {amount} less, for less work",
        "outside-contention": f"{verb} {amount} longer for the same work, as if something outside pushed in",
    }
    return words.get(row.reason, f"{verb} {amount} {'longer' if row.change_ms > 0 else 'less'}")


# --- doubts ---


def find_doubt(deltas: Deltas, told: Sequence[Told], settings: Settings) -> str:
    """Return why the runs cannot be called equal; "" if they can. CI relies on "equal"."""
    if iteration_changed(deltas, settings) or any(is_regression(row, deltas, settings) for row in told):
        return ""
    is_better = any(is_improvement(row, deltas, settings) for row in told)
    if is_better and deltas.after.iteration_us <= deltas.before.iteration_us:
        return ""
    return _iteration_doubt(deltas, settings) or _function_doubt(deltas, told, settings)


def _iteration_doubt(deltas: Deltas, settings: Settings) -> str:
    before, after = deltas.before.iteration_us, deltas.after.iteration_us
    change, error = after - before, iteration_error(deltas)
    least = settings.min_gain * before
    if before <= 0 or abs(change) < least or error <= 0:
        return ""
    is_chance = abs(change) < max(_SUSPICIOUS_ERRORS * error, _SMALL * least)
    if is_chance and abs(change) < _NEVER_EQUAL * least and ITERATION_ERRORS * error < _BLIND * before:
        return ""
    sides = f"iterations take {milliseconds(after / 1e3)} instead of {milliseconds(before / 1e3)}"
    return f"{sides} ({relative(before, after)}), which lies within the noise of {_few(deltas)}"


def _function_doubt(deltas: Deltas, told: Sequence[Told], settings: Settings) -> str:
    """Return the function that would be a regression if it were clearer."""
    row = next((row for row in told if is_slower(row, deltas, settings)), None)
    if row is None:
        return ""
    name = f"{clean(row.name, 80)} on {worker_list(row.workers)}"
    return f"{milliseconds(row.change_ms)} more in {name} are hardly beyond the noise of {_few(deltas)}"


def _few(deltas: Deltas) -> str:
    """Return such as "3 iterations; record more of each run"."""
    sides = [side.fleet.iteration_us.shape[1] for side in (deltas.before, deltas.after)]
    few = f"{sides[0]}" if sides[0] == sides[1] else f"{sides[0]} and {sides[1]}"
    return f"{few} iterations; record more of each run"


def iteration_error(deltas: Deltas) -> float:
    """Return the standard error of the difference of the mean iterations, microseconds."""
    return float(np.hypot(deltas.before.iteration_error_us, deltas.after.iteration_error_us))


def blind_note(deltas: Deltas, settings: Settings) -> str:
    """Return the change that equal runs would not have shown; "" if it is small."""
    sides: tuple[Table, Table] = (deltas.before, deltas.after)
    least = ITERATION_ERRORS * iteration_error(deltas) / max(sides[0].iteration_us, 1e-9)
    if least <= _NEVER_EQUAL * settings.min_gain or any(side.fleet.iteration_us.shape[1] < 2 for side in sides):
        return ""
    return f"in the noise of these iterations a change by less than {percent(least)} is not seen"


# --- one change in words ---


def describe(row: Told, key: FunctionKey) -> str:
    """Return one or two sentences: the counts, and what they mean."""
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
        "slower": _slower(row, key),
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
    """Return executions and their length on both sides."""
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


def _slower(row: Told, key: FunctionKey) -> str:
    figures = row.figures
    less = uses_less(figures)
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
