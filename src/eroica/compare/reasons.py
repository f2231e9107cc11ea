"""What kind of change: more work, slower, pushed aside from outside, or mere waiting for somebody else.

The paper's failed case 5 (EROICA, appendix B) ended here: all kernels were a little longer, equally many, at equal
utilization; it was read as more work, and was a neighbor on the same GPUs.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.compare.changes import AGREEING, Change, Deltas
from eroica.compare.table import Table
from eroica.model.comparison import ChangeReason
from eroica.settings import Settings

Places = tuple[NDArray[np.intp], ...]
#: More (less) executions must account for at least this part of a factor to be the reason.
_MOST_OF_IT = 0.5
#: Contention from outside meets all operators: at least so many are alike, or all there are.
_FEWEST_ALIKE = 3
#: Executions, lengths that differ by less are equal.
_EQUAL = 0.02
#: Utilizations that differ by less are equal, fraction.
_SAMPLING_NOISE = 0.03


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A change in numbers, one side after the other; mean over its units, sum over its functions.

    Attributes:
        time_ms: Critical time per iteration.
        count: Executions per iteration.
        length_ms: Mean length of an execution, 0 without any.
        mu: Utilization, None if it was never sampled.
        resource: What mu is the utilization of.
        counted: Executions were counted, not guessed from samples.
        count_ratio: Executions after per execution before, mean by time; 1 where it cannot be told.
        length_ratio: The same of the length of one.
    """

    time_ms: tuple[float, float]
    count: tuple[float, float]
    length_ms: tuple[float, float]
    mu: tuple[float | None, float | None]
    resource: str
    counted: bool
    count_ratio: float
    length_ratio: float


def measure(change: Change, deltas: Deltas) -> Figures:
    """The numbers of a change."""
    rows, units = list(change.functions), list(change.units)
    at = np.ix_(rows, units)
    sides = deltas.before, deltas.after
    total = [float(side.total_us[at].sum(axis=0).mean()) / 1e3 for side in sides]
    count = [float(side.count[at].sum(axis=0).mean()) for side in sides]
    key = deltas.pairs[rows[0]].key
    sampled = key.kind == "python" and any(p.samples_used for side in sides for p in side.fleet.patterns)
    names = (side.resource[row] for side in reversed(sides) for row in rows)
    count_ratio, length_ratio = _ratios(deltas, at)
    return Figures(
        time_ms=_pair([float(side.time_us[at].sum(axis=0).mean()) / 1e3 for side in sides]),
        count=_pair(count),
        length_ms=_pair([time / number if number > 0 else 0.0 for time, number in zip(total, count, strict=True)]),
        mu=(_utilization(sides[0], at), _utilization(sides[1], at)),
        resource=next(filter(None, names), ""),
        counted=not sampled,
        count_ratio=1.0 if sampled else count_ratio,
        length_ratio=length_ratio * count_ratio if sampled else length_ratio,
    )


def _pair(values: list[float]) -> tuple[float, float]:
    return values[0], values[1]


def _ratios(deltas: Deltas, at: Places) -> tuple[float, float]:
    """Executions, and the length of one, after per before: means by time over functions and units; 1 if unknown."""
    totals = deltas.before.total_us[at], deltas.after.total_us[at]
    counts = deltas.before.count[at], deltas.after.count[at]
    known = (totals[0] > 0) & (totals[1] > 0) & (counts[0] > 0) & (counts[1] > 0)
    if not known.any():
        return 1.0, 1.0
    more = counts[1][known] / counts[0][known]
    longer = totals[1][known] / totals[0][known] / more
    weights = totals[0][known]
    return float(np.average(more, weights=weights)), float(np.average(longer, weights=weights))


def _utilization(side: Table, at: Places) -> float | None:
    mu, weight = side.mu[at], side.total_us[at]
    known = ~np.isnan(mu) & (weight > 0)
    return float(np.average(mu[known], weights=weight[known])) if known.any() else None


def explain(change: Change, figures: Figures, deltas: Deltas, settings: Settings) -> ChangeReason:
    """The reason of a change of computation, Python or collectives that do not wait.

    More (less) executions are more (less) work if they account for most of it. Equally many that last longer at lower
    utilization got slower; at equal utilization, and if at least three operators (or all there are) with most of the
    operators' time changed alike, something outside pushes them aside. One operator that got longer among others that
    did not is "slower": its input or implementation changed.
    """
    pairs = [deltas.pairs[row] for row in change.functions]
    if not any(pair.before for pair in pairs):
        return "new"
    if not any(pair.after for pair in pairs):
        return "gone"
    grew = float(np.sum(change.change_us)) > 0
    of_count, of_length = math.log(figures.count_ratio), math.log(figures.length_ratio)
    together = of_count + of_length
    if abs(together) > math.log1p(_EQUAL) and (together > 0) == grew and of_count / together >= _MOST_OF_IT:
        return "more-work" if grew else "less-work"
    if not grew:
        return "faster"
    if uses_less(figures, settings) is not False:
        return "slower"
    return "outside-contention" if change.alike or _is_typical(change, deltas, figures.length_ratio) else "slower"


def uses_less(figures: Figures, settings: Settings) -> bool | None:
    """Utilization fell; None if it was not sampled on both sides.

    Work that is held up does the same in more time, so its utilization falls by the factor by which it got longer; half
    of that counts, beyond the noise of the samples and up to `utilization_floor`.
    """
    before, after = figures.mu
    if before is None or after is None:
        return None
    expected = before * (1.0 - 1.0 / max(figures.length_ratio, 1.0))
    return after < before - min(max(expected / 2, _SAMPLING_NOISE), settings.utilization_floor)


def _is_typical(change: Change, deltas: Deltas, factor: float) -> bool:
    """The operators on these units got longer as this function did: most of their time, and several of them.

    One kernel may hold most of the time, so time alone does not tell that others changed like it.
    """
    operators = [row for row, pair in enumerate(deltas.pairs) if pair.is_operator]
    if change.functions[0] not in operators:
        return False
    at = np.ix_(operators, list(change.units))
    before, after = deltas.before.time_us[at], deltas.after.time_us[at]
    alike = after >= before * (1.0 + (factor - 1.0) / 2)
    there = before.any(axis=1)
    number = int((2 * (alike & (before > 0)).sum(axis=1) >= np.maximum((before > 0).sum(axis=1), 1))[there].sum())
    if number < min(_FEWEST_ALIKE, int(there.sum())):
        return False
    return bool(before[alike].sum() >= AGREEING * before.sum())
