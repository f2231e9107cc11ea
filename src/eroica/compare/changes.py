"""Which functions changed on which units, beyond what is worth telling and beyond noise.

Array suffixes: F functions, U units. All times are microseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.compare.matching import Pair
from eroica.compare.table import Table
from eroica.settings import Settings

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: A change must exceed so many standard errors, and more where so many are looked at that chance alone makes some.
_LEAST_ERRORS = 3.0
#: Operators count as changed alike if those that show at least half of the typical factor hold this share of the time,
AGREEING = 0.6
#: and if there are so many of them, with this share of the time in which no collective is waited for.
_FEWEST_OPERATORS = 3
_LEAST_SHARE = 0.2
#: What is not worth telling alone, but helps to explain an iteration that changed: this part of the least gain.
_DETAIL = 0.25


class Change(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One row before it has words.

    Attributes:
        functions: Which (indices of pairs); several where operators changed alike.
        units: On which.
        change_us: After less before, without what another row already tells. float64, one for each of `units`.
        strength: In standard errors, of all units together.
        alike: All operators changed alike.
    """

    functions: tuple[int, ...]
    units: tuple[int, ...]
    change_us: Floats
    strength: float
    alike: bool = False


class Deltas(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Differences of two tables.

    Attributes:
        pairs: The functions.
        before: First run.
        after: Second run.
        change_us: After less before. float64 [F, U].
        error_us: Standard error of it, lasting differences of workers included. float64 [F, U].
    """

    pairs: Sequence[Pair]
    before: Table
    after: Table
    change_us: Floats
    error_us: Floats


def subtract(before: Table, after: Table, pairs: Sequence[Pair]) -> Deltas:
    """The second run less the first."""
    lasting = np.sqrt(2.0) * np.minimum(before.lasting_us, after.lasting_us)
    return Deltas(
        pairs=pairs,
        before=before,
        after=after,
        change_us=after.time_us - before.time_us,
        error_us=np.sqrt(before.error_us**2 + after.error_us**2 + lasting**2),
    )


def find_changes(deltas: Deltas, settings: Settings, detailed: bool = False) -> list[Change]:
    """All changes worth telling: operators that changed alike as one, then single functions beyond that.

    Args:
        deltas: The difference of the runs.
        settings: `min_gain`, as a fraction of the iteration before.
        detailed: Tell smaller ones too; for iterations whose change is not explained by large ones.
    """
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
    """Units on which one function changed, or all of them if only their mean says so; longer and shorter apart."""
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
    enough_U &= (agreeing_FU.sum(axis=0) >= _FEWEST_OPERATORS) & (share_U >= AGREEING)
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
