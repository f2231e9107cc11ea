"""The word and the sentence: what a change in functions means for the run as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import msgspec
import numpy as np

from eroica.compare.changes import Change, Deltas
from eroica.compare.reasons import Figures
from eroica.model.comparison import ChangeReason, ComparisonWord
from eroica.model.shares import percent
from eroica.report.words import change as relative
from eroica.report.words import clean, milliseconds, worker_list
from eroica.settings import Settings

FEWEST_ITERATIONS = 2
#: An iteration must change by so many of its standard errors.
ITERATION_ERRORS = 3.5
#: A function that decides the word although iterations do not show it: so many.
CLEAR_ERRORS = 4.0
#: All iterations of one run before all of the other's when sorted: so unlikely where nothing differs (of four and four
#: one order in seventy is so).
_SORTED_BY_CHANCE = 0.02
SLOWER = frozenset({"slower", "more-work", "outside-contention", "new"})


class Told(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A change with its reason.

    Attributes:
        change: Where and by how much.
        figures: Its numbers.
        reason: What kind.
        name: What it is called.
        workers: Global ranks.
        apart: For waiting: it was told apart from the transfer itself, which takes the other members.
    """

    change: Change
    figures: Figures
    reason: ChangeReason
    name: str
    workers: tuple[int, ...]
    apart: bool = True

    @property
    def change_ms(self) -> float:
        """Mean over the units."""
        return float(self.change.change_us.mean()) / 1e3


def iteration_changed(deltas: Deltas, settings: Settings) -> int:
    """1 where iterations got longer, -1 where shorter, beyond the least gain and beyond noise; else 0."""
    before, after = deltas.before, deltas.after
    change = after.iteration_us - before.iteration_us
    error = float(np.hypot(before.iteration_error_us, after.iteration_error_us))
    is_clear = abs(change) >= ITERATION_ERRORS * error or are_apart(deltas)
    return int(np.sign(change)) if is_clear and abs(change) >= settings.min_gain * before.iteration_us else 0


def are_apart(deltas: Deltas) -> bool:
    """Whether every iteration of one run is longer than every one of the other, and chance hardly sorts them so."""
    before_I, after_I = (side.fleet.iteration_us.mean(axis=0) for side in (deltas.before, deltas.after))
    if not before_I.size or not after_I.size:
        return False
    is_sorted = before_I.max() < after_I.min() or after_I.max() < before_I.min()
    return bool(is_sorted) and comb(before_I.size + after_I.size, before_I.size) * _SORTED_BY_CHANCE >= 1


def choose_word(deltas: Deltas, told: Sequence[Told], too_little: str, settings: Settings) -> ComparisonWord:
    """See `Comparison.comparison`."""
    if too_little:
        return "undetermined"
    direction = iteration_changed(deltas, settings)
    if direction > 0 or any(is_regression(row, deltas, settings) for row in told):
        return "regression"
    return "improvement" if direction < 0 or any(is_improvement(row, deltas, settings) for row in told) else "equal"


def is_regression(row: Told, deltas: Deltas, settings: Settings) -> bool:
    """A function got slower, and these workers are busy for longer: nothing else on them makes up for it."""
    return _is_clear(row) and is_slower(row, deltas, settings)


def is_slower(row: Told, deltas: Deltas, settings: Settings) -> bool:
    """The same, clear or not."""
    least_us = settings.min_gain * deltas.before.iteration_us
    return row.reason in SLOWER and row.change_ms > 0 and _busy_change(row, deltas) >= least_us


def is_improvement(row: Told, deltas: Deltas, settings: Settings) -> bool:
    """A function got faster, and these workers are busy for less."""
    least_us = settings.min_gain * deltas.before.iteration_us
    return _is_clear(row) and row.change_ms < 0 and _busy_change(row, deltas) <= -least_us


def _is_clear(row: Told) -> bool:
    """Enough to speak for a run whose iterations do not show it."""
    return row.reason != "waiting" and row.change.strength >= CLEAR_ERRORS


def _busy_change(row: Told, deltas: Deltas) -> float:
    """By how much the row's units are longer at work, waiting for others left out; mean over them."""
    units = list(row.change.units)
    busy_us = (deltas.after.busy_us - deltas.before.busy_us)[units]
    transfer_us = np.nan_to_num((deltas.after.transfer_us - deltas.before.transfer_us)[units])
    return float((np.nan_to_num(busy_us) + transfer_us).mean())


def explained_share(deltas: Deltas, told: Sequence[Told], settings: Settings) -> float | None:
    """Share of the iteration's change that its rows add up to on the worker where they do most; None without one."""
    if not iteration_changed(deltas, settings):
        return None
    total_us = deltas.after.iteration_us - deltas.before.iteration_us
    sums_U = np.zeros(deltas.change_us.shape[1])
    for row in told:
        if row.reason != "waiting":
            sums_U[list(row.change.units)] += row.change.change_us
    return round(float(np.clip(sums_U / total_us, 0.0, 1.0).max(initial=0.0)), 3) + 0.0


def summarize(deltas: Deltas, told: Sequence[Told], word: ComparisonWord, too_little: str, settings: Settings) -> str:
    """One sentence a person can act on."""
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
    """Longer and shorter add up to less than what counts, on every worker."""
    sums_U = np.zeros(deltas.change_us.shape[1])
    for row in rows:
        sums_U[list(row.change.units)] += row.change.change_us
    return bool((np.abs(sums_U) < settings.min_gain * deltas.before.iteration_us).all())


def _only_waiting(told: Sequence[Told], direction: int) -> str:
    """What is left to say where no function explains an iteration that changed."""
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
