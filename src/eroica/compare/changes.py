"""Functions that changed beyond noise and beyond the least gain, and why: more work, slower, contention.

Array suffixes: F functions, U units. All times are microseconds per iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.compare.matching import Pair
from eroica.compare.table import Table
from eroica.localize.peers import USE_FLOOR
from eroica.model.comparison import ChangeReason
from eroica.settings import Settings

Places = tuple[NDArray[np.intp], ...]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: Least standard errors of a change; more where so many functions are compared that chance alone exceeds it.
_LEAST_ERRORS = 3.0
#: Operators changed alike if those with at least half of the typical factor hold this share of their time, are at least
#: so many, and hold this share of the time outside collectives.
_AGREEING = 0.6
_FEWEST_OPERATORS = 3
_LEAST_SHARE = 0.2
#: Part of the least gain from which changes are told where large ones do not explain the iteration.
_DETAIL = 0.25
#: Least part of a factor that the number of executions explains, to be "more work".
_MOST_OF_IT = 0.5
#: Contention from outside affects all operators: at least so many, or all there are.
_FEWEST_ALIKE = 3
#: Relative difference below which executions and lengths are equal.
_EQUAL = 0.02
#: Difference below which utilizations are equal, fraction.
_SAMPLING_NOISE = 0.03


class Change(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A change of functions on some units.

    Attributes:
        functions: Indices of pairs; several where operators changed alike.
        units: Indices of units.
        change_us: After minus before, without the parts of other changes. float64, one per unit.
        strength: Standard errors, of all units together.
        alike: Whether all operators changed alike.
    """

    functions: tuple[int, ...]
    units: tuple[int, ...]
    change_us: Floats
    strength: float
    alike: bool = False


class Deltas(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Differences of two tables: after minus before, and its standard error with lasting differences of workers.

    float64 [F, U] each.
    """

    pairs: Sequence[Pair]
    before: Table
    after: Table
    change_us: Floats
    error_us: Floats


def subtract(before: Table, after: Table, pairs: Sequence[Pair]) -> Deltas:
    """Return the second run minus the first."""
    lasting = np.sqrt(2.0) * np.minimum(before.lasting_us, after.lasting_us)
    return Deltas(
        pairs=pairs,
        before=before,
        after=after,
        change_us=after.time_us - before.time_us,
        error_us=np.sqrt(before.error_us**2 + after.error_us**2 + lasting**2),
    )


def find_changes(deltas: Deltas, settings: Settings, detailed: bool = False) -> list[Change]:
    """Return operators that changed alike as one change, then single functions; `detailed`: small ones, too."""
    least_us = settings.min_gain * deltas.before.iteration_us * (_DETAIL if detailed else 1.0)
    rest_FU = deltas.change_us.copy()
    found = list(_alike(deltas, rest_FU, settings.min_gain * deltas.before.iteration_us))
    errors = max(_LEAST_ERRORS, float(np.sqrt(2.0 * np.log(max(rest_FU.size, 2)))))
    for function, pair in enumerate(deltas.pairs):
        error_U = deltas.error_us[function]
        # waiting rises and falls on all workers in the same iterations; else their noise is their own
        shared = error_U.size if pair.key.kind == "collective" else 1
        found += _single(function, rest_FU[function], error_U, least_us, errors, shared)
    return found


def _single(
    function: int, change_U: Floats, error_U: Floats, least_us: float, errors: float, shared: int
) -> Iterator[Change]:
    """Yield the units on which a function changed, longer and shorter apart."""
    for sign in (1.0, -1.0):
        own_U = sign * change_U
        strength_U = own_U / np.maximum(error_U, 1e-9)
        changed_U = (own_U >= least_us) & (strength_U >= errors)
        together = own_U.mean(), np.sqrt((error_U**2).sum() * shared) / max(own_U.size, 1)
        if own_U.size > 1 and together[0] >= least_us and together[0] >= errors * together[1]:
            changed_U |= own_U >= max(together[0] / 2, least_us / 2)
        units = np.flatnonzero(changed_U)
        if units.size:
            yield Change(
                functions=(function,),
                units=tuple(units.tolist()),
                change_us=change_U[units],
                strength=_finite(strength_U[units].mean() * np.sqrt(1.0 if shared > 1 else units.size)),
            )


def _finite(value: float) -> float:
    return float(np.nan_to_num(value, nan=0.0, posinf=1e6, neginf=0.0))


# --- operators that changed alike ---


def _alike(deltas: Deltas, rest_FU: Floats, least_us: float) -> Iterator[Change]:
    """Units on which the operators got longer (or shorter) by about one factor; takes that out of `rest_FU`."""
    operators = np.asarray([pair.is_operator for pair in deltas.pairs], dtype=np.bool_)
    if operators.sum() < _FEWEST_OPERATORS:
        return
    before_FU, after_FU = (np.where(operators[:, None], table.time_us, 0.0) for table in (deltas.before, deltas.after))
    known_FU = (before_FU > 0) & (after_FU > 0)
    ratio_FU = np.divide(after_FU, before_FU, out=np.ones(before_FU.shape), where=known_FU)
    weight_FU = np.where(known_FU, before_FU, 0.0)
    factor_U = weighted_median(ratio_FU, weight_FU)
    agreeing_FU = known_FU & ((ratio_FU - 1.0) * np.sign(factor_U - 1.0) >= np.abs(factor_U - 1.0) / 2)
    share_U = np.where(agreeing_FU, weight_FU, 0.0).sum(axis=0) / np.maximum(weight_FU.sum(axis=0), 1e-9)
    alike_FU = _part_alike(deltas, agreeing_FU, factor_U)
    change_U = np.where(operators[:, None], alike_FU, 0.0).sum(axis=0)
    strength_U = np.abs(change_U) / np.maximum(_error_together(deltas), 1e-9)
    enough_U = weight_FU.sum(axis=0) >= _LEAST_SHARE * np.nan_to_num(deltas.before.busy_us, nan=0.0)
    enough_U &= (agreeing_FU.sum(axis=0) >= _FEWEST_OPERATORS) & (share_U >= _AGREEING)
    broad_U = enough_U & (np.abs(change_U) >= least_us) & (strength_U >= _LEAST_ERRORS)
    rest_FU -= np.where(broad_U, alike_FU, 0.0)
    for sign in (1.0, -1.0):
        units = np.flatnonzero(broad_U & (np.sign(change_U) == sign))
        if units.size:
            yield Change(
                functions=tuple(np.flatnonzero(agreeing_FU[:, units].any(axis=1)).tolist()),
                units=tuple(units.tolist()),
                change_us=alike_FU[:, units].sum(axis=0),
                strength=_finite(strength_U[units].mean() * np.sqrt(units.size)),
                alike=True,
            )


def _part_alike(deltas: Deltas, agreeing_FU: Flags, factor_U: Floats) -> Floats:
    """The part of each function's change that goes with the operators' common factor. float64 [F, U].

    An operator that agrees gives all up to twice the common factor's distance from 1 (they are alike, not equal);
    Python, which is pushed aside by the same neighbors, gives up to the factor. Collectives keep what they have.
    """
    python = np.asarray([pair.key.kind == "python" for pair in deltas.pairs], dtype=np.bool_)
    allowed_FU = np.where(agreeing_FU, 2.0 * (factor_U - 1.0), 0.0)
    allowed_FU += np.where(python[:, None], factor_U - 1.0, 0.0)
    allowed_FU *= deltas.before.time_us
    same_FU = np.sign(allowed_FU) == np.sign(deltas.change_us)
    part_FU = np.minimum(np.abs(deltas.change_us), np.abs(allowed_FU))
    return np.asarray(np.where(same_FU, np.sign(deltas.change_us) * part_FU, 0.0))


def _error_together(deltas: Deltas) -> Floats:
    """Standard error of the change of the operators' time together. float64 [U]."""
    lasting_U = np.sqrt(2.0) * np.minimum(deltas.before.together_lasting_us, deltas.after.together_lasting_us)
    own_U = np.hypot(deltas.before.together_error_us, deltas.after.together_error_us)
    return np.asarray(np.hypot(own_U, lasting_U))


def weighted_median(values_FU: Floats, weight_FU: Floats) -> Floats:
    """Median of each column by weight; 1 for a column without any. float64 [U]."""
    order = np.argsort(values_FU, axis=0, kind="stable")
    share = np.cumsum(np.take_along_axis(weight_FU, order, axis=0), axis=0)
    middle = np.argmax(share >= share[-1] / 2, axis=0)
    found = np.take_along_axis(np.take_along_axis(values_FU, order, axis=0), middle[None], axis=0)[0]
    return np.asarray(np.where(share[-1] > 0, found, 1.0))


# --- reasons ---


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a change before and after: mean over its units, sum over its functions.

    Attributes:
        time_ms: Critical time per iteration.
        count: Executions per iteration.
        length_ms: Mean length of an execution.
        mu: Utilization of the resource, None if it was not sampled.
        counted: Whether executions were counted, not guessed from samples.
        count_ratio: Executions after per execution before, mean by time; 1 if unknown.
        length_ratio: The same of the length.
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
    """Return the numbers of a change."""
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


def explain(change: Change, figures: Figures, deltas: Deltas) -> ChangeReason:
    """Return the reason of a change that is no waiting.

    More executions are more work if they account for most of it. Equally many that last longer at lower utilization
    got slower. At equal utilization, contention from outside affects most operators alike (the paper's failed case 5,
    EROICA, appendix B, was a neighbor on the same GPUs); a single operator's input or implementation changed.
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
    if uses_less(figures) is not False:
        return "slower"
    return "outside-contention" if change.alike or _is_typical(change, deltas, figures.length_ratio) else "slower"


def uses_less(figures: Figures) -> bool | None:
    """Return whether utilization fell; None if it was not sampled on both sides.

    Work that is held up does the same in more time, so its utilization falls by the factor of its length. Half of that
    counts, beyond the noise of the samples and up to `USE_FLOOR`.
    """
    before, after = figures.mu
    if before is None or after is None:
        return None
    expected = before * (1.0 - 1.0 / max(figures.length_ratio, 1.0))
    return after < before - min(max(expected / 2, _SAMPLING_NOISE), USE_FLOOR)


def _is_typical(change: Change, deltas: Deltas, factor: float) -> bool:
    """Return whether most operators on these units got longer as this function did, by number and by time."""
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
    return bool(before[alike].sum() >= _AGREEING * before.sum())
