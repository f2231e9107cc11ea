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
from eroica.localize.rule import USE_FLOOR
from eroica.model.comparison import ChangeReason
from eroica.model.pattern import FunctionKey
from eroica.model.shares import percent
from eroica.model.words import clean, milliseconds
from eroica.settings import Settings

Floats = NDArray[np.float64]
#: Least standard errors of a change; more where so many functions are compared that chance alone exceeds it.
_LEAST_ERRORS = 3.0
#: Operators changed alike if those within these multiples of the typical relative change hold this share of their time,
#: are at least so many (or all there are), and hold this share of the time outside collectives.
_ALIKE = (0.5, 3.0)
_AGREEING = 0.6
_FEWEST_OPERATORS = 3
_LEAST_SHARE = 0.2
#: Least part of a factor that the number of executions explains, to be "more work".
_MOST_OF_IT = 0.5
#: Relative difference below which executions and lengths are equal.
_EQUAL = 0.02
#: Difference below which utilizations are equal, fraction.
_SAMPLING_NOISE = 0.03


class Change(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A change of a function, or of several operators that changed alike, on some units.

    Attributes:
        key: The function; of several the one with the most time.
        functions: Indices of pairs.
        units: Indices of units.
        change_us: After minus before. float64, one per unit.
        strength: Standard errors, of all units together.
        reason: What kind of change.
        time_ms: Critical time per iteration, before and after: mean over the units, as all below.
        count: Executions per iteration.
        length_ms: Mean length of an execution.
        mu: Utilization of the resource, None if it was not sampled.
        counted: Whether executions were counted, not guessed from samples.
        count_ratio: Executions after per execution before, mean by time; 1 if unknown.
        length_ratio: The same of the length.
    """

    key: FunctionKey
    functions: tuple[int, ...]
    units: tuple[int, ...]
    change_us: Floats
    strength: float
    reason: ChangeReason = "slower"
    time_ms: tuple[float, ...]
    count: tuple[float, ...]
    length_ms: tuple[float, ...]
    mu: tuple[float | None, ...]
    resource: str
    counted: bool
    count_ratio: float
    length_ratio: float

    @property
    def change_ms(self) -> float:
        """Mean change over the units."""
        return float(self.change_us.mean()) / 1e3

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.key.name if len(self.functions) == 1 else f"{len(self.functions)} operators"


class Deltas(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Differences of two tables: after minus before, and its standard error with lasting differences of workers.

    float64 [F + 1, U] each: one row per pair, and a last one of all operators together.
    """

    pairs: Sequence[Pair]
    before: Table
    after: Table
    change_us: Floats
    error_us: Floats


def all_operators(pairs: Sequence[Pair]) -> Pair:
    """Return a pair that stands for all operators together."""
    own = [pair for pair in pairs if pair.is_operator]
    before, after = (tuple(row for pair in own for row in getattr(pair, side)) for side in ("before", "after"))
    return Pair(before=before, after=after, key=FunctionKey(kind="compute", name="all operators"))


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


def find_changes(deltas: Deltas, settings: Settings) -> list[Change]:
    """Return changes with their reasons, the largest first, waits last; operators that changed alike are one."""
    least_us = settings.min_gain * deltas.before.iteration_us
    together = list(_alike(deltas, least_us))
    taken_FU = np.zeros(deltas.change_us.shape, dtype=np.bool_)
    for change in together:
        taken_FU[np.ix_(list(change.functions), list(change.units))] = True
    errors = max(_LEAST_ERRORS, float(np.sqrt(2.0 * np.log(max(deltas.change_us[:-1].size, 2)))))
    alone_FU = np.where(taken_FU, 0.0, deltas.change_us)
    single = [
        change
        for function in range(len(deltas.pairs))
        for change in _single(deltas, function, alone_FU[function], least_us, errors)
    ]
    waits_U = _waits(deltas)
    found = [
        msgspec.structs.replace(change, reason=_reason(change, deltas, waits_U)) for change in (*together, *single)
    ]
    return sorted(found, key=lambda change: (change.reason == "waiting", -abs(change.change_ms), change.name))


def _single(deltas: Deltas, function: int, change_U: Floats, least_us: float, errors: float) -> Iterator[Change]:
    """Yield the units on which a function changed, longer and shorter apart."""
    error_U = deltas.error_us[function]
    # waiting rises and falls on all workers in the same iterations; else their noise is their own
    shared = error_U.size if deltas.pairs[function].key.kind == "collective" else 1
    for sign in (1.0, -1.0):
        own_U = sign * change_U
        strength_U = own_U / np.maximum(error_U, 1e-9)
        changed_U = (own_U >= least_us) & (strength_U >= errors)
        mean, error = own_U.mean(), np.sqrt((error_U**2).sum() * shared) / own_U.size
        if own_U.size > 1 and mean >= least_us and mean >= errors * error:
            changed_U |= own_U >= mean / 2
        units = np.flatnonzero(changed_U)
        if units.size:
            strength = strength_U[units].mean() * np.sqrt(1.0 if shared > 1 else units.size)
            yield _measured(deltas, [function], units, change_U[units], strength)


def _alike(deltas: Deltas, least_us: float) -> Iterator[Change]:
    """Yield the units on which the operators got longer (or shorter) by about one factor."""
    operators = np.asarray([pair.is_operator for pair in deltas.pairs], dtype=np.bool_)
    fewest = min(_FEWEST_OPERATORS, int(operators.sum()))
    if fewest < 2:
        return
    before_FU, after_FU = (table.time_us[:-1] * operators[:, None] for table in (deltas.before, deltas.after))
    known_FU = (before_FU > 0) & (after_FU > 0)
    ratio_FU = np.divide(after_FU, before_FU, out=np.ones(before_FU.shape), where=known_FU)
    weight_FU = np.where(known_FU, before_FU, 0.0)
    whole_U = weight_FU.sum(axis=0)
    factor_U = np.divide((ratio_FU * weight_FU).sum(axis=0), whole_U, out=np.ones(whole_U.shape), where=whole_U > 0)
    relative_FU = (ratio_FU - 1.0) / np.where(factor_U == 1.0, np.inf, factor_U - 1.0)
    agreeing_FU = known_FU & (relative_FU >= _ALIKE[0]) & (relative_FU <= _ALIKE[1])
    agreeing_U = np.where(agreeing_FU, weight_FU, 0.0).sum(axis=0)
    change_U = np.where(agreeing_FU, deltas.change_us[:-1], 0.0).sum(axis=0)
    strength_U = np.abs(change_U) / np.maximum(deltas.error_us[-1], 1e-9)
    broad_U = (agreeing_FU.sum(axis=0) >= fewest) & (agreeing_U >= _AGREEING * whole_U)
    broad_U &= whole_U >= _LEAST_SHARE * np.nan_to_num(deltas.before.busy_us, nan=0.0)
    broad_U &= (np.abs(change_U) >= least_us) & (strength_U >= _LEAST_ERRORS)
    for sign in (1.0, -1.0):
        units = np.flatnonzero(broad_U & (np.sign(change_U) == sign))
        if units.size:
            functions = np.flatnonzero(agreeing_FU[:, units].any(axis=1)).tolist()
            strength = strength_U[units].mean() * np.sqrt(units.size)
            yield _measured(deltas, functions, units, change_U[units], strength)


def _measured(
    deltas: Deltas, functions: list[int], units: NDArray[np.intp], change_us: Floats, strength: float
) -> Change:
    """Return a change with its numbers: mean over its units, sum over its functions."""
    at, sides = np.ix_(functions, units.tolist()), (deltas.before, deltas.after)
    totals, counts = [side.total_us[at] for side in sides], [side.count[at] for side in sides]
    count = [float(one.sum(axis=0).mean()) for one in counts]
    length = [float(total.sum(axis=0).mean()) / 1e3 / number if number > 0 else 0.0
              for total, number in zip(totals, count, strict=True)]  # fmt: skip
    heaviest = max(functions, key=lambda function: float(sum(side.time_us[function].sum() for side in sides)))
    key = deltas.pairs[heaviest].key
    sampled = key.kind == "python" and any(p.samples_used for side in sides for p in side.fleet.patterns)
    known = (totals[0] > 0) & (totals[1] > 0) & (counts[0] > 0) & (counts[1] > 0)
    more = longer = 1.0
    if known.any():
        more_each = counts[1][known] / counts[0][known]
        longer_each = totals[1][known] / totals[0][known] / more_each
        more, longer = (float(np.average(one, weights=totals[0][known])) for one in (more_each, longer_each))
    return Change(
        key=key,
        functions=tuple(functions),
        units=tuple(units.tolist()),
        change_us=change_us,
        strength=float(np.nan_to_num(strength, nan=0.0, posinf=1e6, neginf=0.0)),
        time_ms=tuple(float(side.time_us[at].sum(axis=0).mean()) / 1e3 for side in sides),
        count=tuple(count),
        length_ms=tuple(length),
        mu=tuple(_utilization(side.mu[at], side.total_us[at]) for side in sides),
        resource=next(filter(None, (side.resource[one] for side in reversed(sides) for one in functions)), ""),
        counted=not sampled,
        count_ratio=1.0 if sampled else more,
        length_ratio=more * longer if sampled else longer,
    )


def _utilization(mu: Floats, weight: Floats) -> float | None:
    known = ~np.isnan(mu) & (weight > 0)
    return float(np.average(mu[known], weights=weight[known])) if known.any() else None


# --- reasons ---


def _waits(deltas: Deltas) -> list[bool]:
    """Return the units whose change in critical collective time is mostly waiting, or may be."""
    collectives = [at for at, pair in enumerate(deltas.pairs) if pair.key.kind == "collective"]
    total_U = deltas.change_us[collectives].sum(axis=0)
    own_U = deltas.after.transfer_us - deltas.before.transfer_us
    error_U = np.hypot(deltas.before.transfer_error_us, deltas.after.transfer_error_us)
    is_own_U = (own_U * np.sign(total_U) >= np.abs(total_U) / 2) & (np.abs(own_U) >= 3.0 * error_U)
    return [not own for own in is_own_U.tolist()]


def _reason(change: Change, deltas: Deltas, waits_U: Sequence[bool]) -> ChangeReason:
    """Return the reason of a change.

    More executions are more work if they account for most of it. Equally many that last longer at lower utilization
    got slower. At equal utilization, contention from outside affects most operators alike (the paper's failed case 5,
    EROICA, appendix B, was a neighbor on the same GPUs); a single operator's input or implementation changed.
    """
    if change.key.kind == "collective" and 2 * sum(waits_U[unit] for unit in change.units) >= len(change.units):
        return "waiting"
    pairs = [deltas.pairs[row] for row in change.functions]
    if not any(pair.before for pair in pairs):
        return "new"
    if not any(pair.after for pair in pairs):
        return "gone"
    grew = change.change_ms > 0
    of_count, of_length = math.log(change.count_ratio), math.log(change.length_ratio)
    together = of_count + of_length
    if abs(together) > math.log1p(_EQUAL) and (together > 0) == grew and of_count / together >= _MOST_OF_IT:
        return "more-work" if grew else "less-work"
    if not grew:
        return "faster"
    return "outside-contention" if len(pairs) > 1 and uses_less(change) is False else "slower"


def uses_less(change: Change) -> bool | None:
    """Return whether utilization fell; None if it was not sampled on both sides.

    Work that is held up does the same in more time, so its utilization falls by the factor of its length. Half of that
    counts, beyond the noise of the samples and up to `USE_FLOOR`.
    """
    before, after = change.mu
    if before is None or after is None:
        return None
    expected = before * (1.0 - 1.0 / max(change.length_ratio, 1.0))
    return after < before - min(max(expected / 2, _SAMPLING_NOISE), USE_FLOOR)


# --- a change in words: the clause in the sentence of a comparison, and the text beside its numbers ---


def predicate(change: Change) -> str:
    """Return what a function does differently: "takes 12.0 ms more, for more work"."""
    verb = "take" if len(change.functions) > 1 else "takes"
    by = milliseconds(abs(change.change_ms))
    return {
        "new": f"is new and takes {by}",
        "gone": f"is gone, which saves {by}",
        "more-work": f"{verb} {by} more, for more work",
        "less-work": f"{verb} {by} less, for less work",
        "outside-contention": f"{verb} {by} longer for the same work, as if something outside pushed in",
    }.get(change.reason, f"{verb} {by} {'longer' if change.change_ms > 0 else 'less'}")


def describe(change: Change, apart: bool) -> str:
    """Return one or two sentences: the counts, and what they mean; `apart`: waiting was told from the transfer."""
    before, after = map(milliseconds, change.time_ms)
    if change.reason == "new":
        return f"Not there before; takes {after} of each iteration now."
    if change.reason == "gone":
        return f"Took {before} of each iteration; not there any more."
    if change.reason == "waiting":
        longer = "Longer" if change.change_ms > 0 else "Shorter"
        if apart:
            return f"{longer} because members of the group arrive at different times; a symptom of the other changes."
        return f"{longer}; without the other members, waiting cannot be told from the transfer itself."
    return f"{_counts(change)} {_meaning(change)}".strip()


def _counts(change: Change) -> str:
    """Return executions and their length on both sides."""
    if not change.counted:
        return f"From {milliseconds(change.time_ms[0])} to {milliseconds(change.time_ms[1])} per iteration."
    before, after = change.count
    if min(before, after) <= 0:
        return ""
    number = f"{change.count_ratio:.2f} times as many executions ({before:.3g} → {after:.3g} per iteration)"
    if abs(change.count_ratio - 1) < 0.005:
        number = f"As many executions as before ({after:.3g} per iteration)"
    is_long = "each takes" if abs(change.length_ratio - 1) >= 0.02 else "each as long as before"
    return f"{number}, {is_long}{f' {change.length_ratio:.2f} times as long' if is_long == 'each takes' else ''}."


def _meaning(change: Change) -> str:
    use = ""
    if None not in change.mu:
        before, after = (percent(mu or 0.0) for mu in change.mu)
        use = f"Use of {clean(change.resource, 24) or 'its resource'} {before} before, {after} now. "
    if change.reason != "slower":
        return {
            "more-work": "More work.",
            "less-work": "Less work.",
            "faster": f"{use}The same work takes less time.",
            "outside-contention": f"{use}Equal counts and equal utilization: if batch size and inputs did not change, "
            "another process on these devices pushes them aside.",
        }[change.reason]
    kind, less = change.key.kind, uses_less(change)
    if change.counted and change.length_ratio <= 1.02:
        return f"{use}As much work as before, but less of it is hidden behind other work."
    if kind == "collective":
        return "Beyond waiting for its members: a slower link, or more data in each."
    if less is None:
        return (
            "Utilization was not sampled: slower hardware, larger inputs, waiting and other processes cannot be told "
            "apart."
        )
    if less:
        return f"{use}The same work at lower utilization: slower hardware, waiting, or others take its cores or device."
    if kind == "python":
        return f"{use}Its own code takes longer: more is done in it, or the same in a slower way."
    return f"{use}Other operators are as fast as before: its inputs or its implementation changed."
