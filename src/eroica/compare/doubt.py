"""What two runs cannot tell: changes that are worth telling, but lie within noise.

"Equal" is a promise, and CI relies on it. So an iteration that looks longer by more than the least gain counts as equal
only where that is plainly chance: near the noise, too large to be called equal, or in runs that would not show half an
iteration more, it is undetermined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eroica.compare.changes import Deltas
from eroica.compare.conclusion import (
    CLEAR_ERRORS,
    ITERATION_ERRORS,
    Told,
    is_improvement,
    is_regression,
    is_slower,
    iteration_changed,
)
from eroica.compare.table import Table, inflation
from eroica.model.shares import percent
from eroica.report.words import change as relative
from eroica.report.words import clean, milliseconds, worker_list
from eroica.settings import Settings

#: From so many standard errors on a change is not taken for chance, although it is no certain one yet.
_SUSPICIOUS_ERRORS = 2.0
#: and if the change is so many times the least gain: one comparison in twenty lies beyond two errors by chance.
_SMALL = 2.0
#: Iterations whose means differ by so many times the least gain are never called equal.
_NEVER_EQUAL = 3.0
#: Runs that would not show a change by this part of an iteration cannot be called equal where they differ at all.
_BLIND = 0.5
#: What is recorded anew should show the change with so many standard errors to spare.
_TO_SPARE = 2.0
_MOST_ITERATIONS = 1000


def find_doubt(deltas: Deltas, told: Sequence[Told], settings: Settings) -> str:
    """Why nobody can say that the runs are equal, with the number of iterations that would tell; "" without a doubt."""
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
    errors = ITERATION_ERRORS, abs(change) / error
    return f"{sides} ({relative(before, after)}), which lies within the noise of {_advice(deltas, *errors)}"


def _function_doubt(deltas: Deltas, told: Sequence[Told], settings: Settings) -> str:
    """A function that would be a regression if only it were clearer."""
    row = next((row for row in told if is_slower(row, deltas, settings)), None)
    if row is None:
        return ""
    name = f"{clean(row.name, 80)} on {worker_list(row.workers)}"
    advice = _advice(deltas, CLEAR_ERRORS, row.change.strength)
    return f"{milliseconds(row.change_ms)} more in {name} are hardly beyond the noise of {advice}"


def _advice(deltas: Deltas, wanted: float, seen: float) -> str:
    """Such as "3 iterations; record 12 or more of each run"."""
    sides = [int(side.fleet.iteration_us.shape[1]) for side in (deltas.before, deltas.after)]
    number = enough_iterations(min(sides), (wanted + _TO_SPARE) / max(seen, 1e-9))
    few = f"{sides[0]}" if sides[0] == sides[1] else f"{sides[0]} and {sides[1]}"
    more = f"more than {_MOST_ITERATIONS}" if number > _MOST_ITERATIONS else f"{number} or more"
    return f"{few} iterations; record {more} of each run"


def enough_iterations(now: int, factor: float) -> int:
    """So many iterations make a standard error of `now` ones smaller by `factor`, rounded up to what one would say."""
    needed = max(now, 2)
    scale = inflation(needed) / math.sqrt(needed) / max(factor, 1.0)
    while inflation(needed) / math.sqrt(needed) > scale and needed <= _MOST_ITERATIONS:
        needed += 1
    step = 5 if needed <= 50 else 10 if needed <= 100 else 50
    return max(-(-needed // step) * step, now + 1)


def iteration_error(deltas: Deltas) -> float:
    """Standard error of the difference of the mean iterations, microseconds."""
    return float(np.hypot(deltas.before.iteration_error_us, deltas.after.iteration_error_us))


def blind_note(deltas: Deltas, settings: Settings) -> str:
    """What runs that count as equal would not have shown, "" where that is little."""
    sides: tuple[Table, Table] = (deltas.before, deltas.after)
    least = ITERATION_ERRORS * iteration_error(deltas) / max(sides[0].iteration_us, 1e-9)
    if least <= _NEVER_EQUAL * settings.min_gain or any(side.fleet.iteration_us.shape[1] < 2 for side in sides):
        return ""
    return f"in the noise of these iterations a change by less than {percent(least)} is not seen"
