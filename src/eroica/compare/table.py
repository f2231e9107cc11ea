"""Both runs as arrays on the same functions and units.

A unit is a worker, or the median of a role's workers where the runs have different workers. Array suffixes: F functions
and U units, W workers, I iterations. All times are microseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.compare.matching import Pair
from eroica.localize.arrivals import read_arrivals
from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]
Units = Sequence[Sequence[int]]
#: Least workers of a role whose differences show how much workers differ for good.
_FEWEST_TO_SPREAD = 4
_MAD_TO_DEVIATION = 1.4826


class Table(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One run on the units.

    Attributes:
        iteration_us: Mean iteration.
        time_us: Critical time. float64 [F, U].
        lasting_us: Robust standard deviation of workers of the same role; 0 for few workers. float64 [F, U].
        total_us: Time over all executions. float64 [F, U].
        mu: Utilization of its resource; NaN if not sampled. float64 [F, U].
        busy_us: Iteration without critical collective time. float64 [U].
        transfer_us: Critical collective time without waiting for other members; NaN if unknown. float64 [U].
    """

    fleet: Fleet
    iteration_us: float
    iteration_error_us: float
    time_us: Floats
    error_us: Floats
    lasting_us: Floats
    total_us: Floats
    count: Floats
    mu: Floats
    resource: tuple[str, ...]
    busy_us: Floats
    transfer_us: Floats
    transfer_error_us: Floats


def align(before: Fleet, after: Fleet, pairs: Sequence[Pair]) -> tuple[Table, Table, list[tuple[int, ...]], str]:
    """Return both runs on the same functions and units, their ranks, and a note on the units."""
    mine, theirs, ranks, note = _choose_units(before, after)
    first = _lay_out(before, [pair.before for pair in pairs], mine)
    second = _lay_out(after, [pair.after for pair in pairs], theirs)
    return first, second, ranks, note


def _choose_units(before: Fleet, after: Fleet) -> tuple[Units, Units, list[tuple[int, ...]], str]:
    """Return the workers of each unit before and after, its global ranks, and a note on units that are roles."""
    shared = [rank for rank in after.ranks if rank in set(before.ranks)]
    sizes = [_world_size(fleet) for fleet in (before, after)]
    if shared and (sizes[0] == sizes[1] or 0 in sizes):
        mine, theirs = ([[fleet.ranks.index(rank)] for rank in shared] for fleet in (before, after))
        return mine, theirs, [(rank,) for rank in shared], ""
    numbers = "no worker in common"
    if sizes[0] != sizes[1] and all(sizes):
        recorded = [len(fleet.ranks) for fleet in (before, after)]
        here = f", of which {recorded[0]} and {recorded[1]} are here" if recorded != sizes else ""
        numbers = f"{sizes[0]} and {sizes[1]} workers{here}"
    roles = range(int(after.roles.max()) + 1) if before.roles.max() == after.roles.max() else ()
    mine, theirs = (
        [np.flatnonzero(fleet.roles == role).tolist() for role in roles] or [list(range(len(fleet.ranks)))]
        for fleet in (before, after)
    )
    each = " of each role" if len(roles) > 1 else ""
    ranks = [tuple(after.ranks[worker] for worker in unit) for unit in theirs]
    return mine, theirs, ranks, f"{numbers}: the median workers{each} are compared"


def _world_size(fleet: Fleet) -> int:
    """Return the workers of the whole job, 0 if unknown."""
    stated = max(pattern.worker.world_size for pattern in fleet.patterns)
    return stated if stated > 1 or len(fleet.ranks) == 1 else 0


def _lay_out(fleet: Fleet, functions: Sequence[tuple[int, ...]], units: Units) -> Table:
    """Return one run as a table; `functions`: rows of the fleet of each function, () for one that it does not have."""
    time_FW, error_FW = _times(fleet, functions)
    iterations = fleet.iteration_us.shape[1]
    transfer_WI = _transfer(fleet)
    merged = [_merge(fleet, rows) for rows in functions]
    empty = np.zeros((0, len(fleet.ranks)))
    total_FW, count_FW, mu_FW = (np.stack([row[at] for row in merged]) if merged else empty for at in range(3))
    return Table(
        fleet=fleet,
        iteration_us=fleet.mean_iteration_us,
        iteration_error_us=_error(fleet.iteration_us.mean(axis=0)[None])[0] * _inflation(iterations),
        time_us=_over(np.median, time_FW, units),
        error_us=_unit_error(error_FW, units),
        lasting_us=_lasting(time_FW, fleet.roles, units),
        total_us=_over(np.median, total_FW, units),
        count=_over(np.median, count_FW, units),
        mu=_over(_nan_mean, mu_FW, units),
        resource=tuple(_resource(fleet, rows) for rows in functions),
        busy_us=_over(np.median, fleet.busy_us.mean(axis=1)[None], units)[0],
        transfer_us=_over(np.median, transfer_WI.mean(axis=1)[None], units)[0],
        transfer_error_us=_unit_error(_error(transfer_WI)[None] * _inflation(iterations), units)[0],
    )


def _inflation(iterations: int) -> float:
    """Return the factor by which a standard error from few iterations is too small, near Student's."""
    return 1.0 + 4.0 / (iterations - 1) ** 2


def _error(values_WI: Floats) -> Floats:
    """Return the standard error of each row's mean."""
    return np.asarray(values_WI.std(axis=1, ddof=1) / np.sqrt(values_WI.shape[1]))


def _times(fleet: Fleet, functions: Sequence[tuple[int, ...]]) -> tuple[Floats, Floats]:
    """Return the mean critical time of each function on each worker, and its standard error. float64 [F, W] each."""
    time_FW, error_FW = np.zeros((2, len(functions), len(fleet.ranks)))
    unsteady_W = _error(fleet.iteration_us) / np.maximum(fleet.iteration_us.mean(axis=1), 1e-9)
    # stack samples may miss a sample and a half.
    missed_W = np.asarray(
        [
            1.5e6 * p.duration_s / p.samples_used / max(p.last_iteration - p.first_iteration, 1)
            if p.samples_used
            else 0.0
            for p in fleet.patterns
        ]
    )
    for function, rows in enumerate(functions):
        if not rows:
            continue
        series_WI = fleet.series(rows)
        time_FW[function] = series_WI.mean(axis=1)
        sampled_W = np.sqrt((fleet.error_us[list(rows)] ** 2).sum(axis=0))
        if fleet.keys[rows[0]].kind == "python":
            sampled_W = np.maximum(sampled_W, missed_W)
        flat_W = series_WI.std(axis=1) == 0  # no series was kept: as unsteady as the iteration
        own_W = np.where(flat_W, time_FW[function] * unsteady_W, _error(series_WI))
        error_FW[function] = np.maximum(own_W, sampled_W)
    return time_FW, error_FW * _inflation(fleet.iteration_us.shape[1])


def _merge(fleet: Fleet, rows: tuple[int, ...]) -> tuple[Floats, Floats, Floats]:
    """Return total time, executions and utilization of rows that count as one function. float64 [W] each."""
    at = list(rows)
    total_RW, mu_RW = fleet.total_us[at], fleet.pattern[at, :, 1]
    present_RW = (fleet.count[at] > 0) | (total_RW > 0)
    weight_RW = np.where(np.isnan(mu_RW) | ~present_RW, 0.0, np.maximum(total_RW, 1e-9))
    weight_W = weight_RW.sum(axis=0)
    mu_W = np.divide(
        (np.nan_to_num(mu_RW) * weight_RW).sum(axis=0), weight_W, where=weight_W > 0, out=weight_W * np.nan
    )
    return total_RW.sum(axis=0), fleet.count[at].sum(axis=0), mu_W


def _resource(fleet: Fleet, rows: tuple[int, ...]) -> str:
    at = list(rows)
    numbers = fleet.resource[at].T[fleet.place[at].T >= 0]
    return next(filter(None, (fleet.resources[number] for number in numbers.tolist())), "")


def _transfer(fleet: Fleet) -> Floats:
    """Return the critical collective time without waiting for members. float64 [W, I], NaN if unknown.

    Without paired executions, it is the least that any worker spends in an iteration.
    """
    arrivals = read_arrivals(fleet)
    if arrivals.executions:
        return np.maximum(fleet.wait_us - arrivals.waited_us, 0.0)
    if len(fleet.ranks) > 1:
        return np.broadcast_to(fleet.wait_us.min(axis=0), fleet.wait_us.shape).astype(np.float64)
    return np.full(fleet.wait_us.shape, np.nan) if fleet.wait_us.any() else np.zeros(fleet.wait_us.shape)


def _nan_mean(values: Floats, axis: int) -> Floats:
    number = (~np.isnan(values)).sum(axis=axis)
    return np.where(number > 0, np.nansum(values, axis=axis) / np.maximum(number, 1), np.nan)


def _over(how: Callable[..., Floats], values_FW: Floats, units: Units) -> Floats:
    """Combine the workers of each unit. float64 [F, U]."""
    return np.stack([how(values_FW[:, list(unit)], axis=1) for unit in units], axis=1)


def _unit_error(error_FW: Floats, units: Units) -> Floats:
    """Return the standard error of each unit's mean. float64 [F, U]."""
    return _over(lambda own_FW, axis: np.sqrt((own_FW**2).sum(axis=axis)) / own_FW.shape[axis], error_FW, units)


def _lasting(time_FW: Floats, roles_W: NDArray[np.intp], units: Units) -> Floats:
    """Return the robust deviation among workers of each unit's role. float64 [F, U]."""
    spread_FW = np.zeros_like(time_FW)
    for role in np.unique(roles_W):
        members = np.flatnonzero(roles_W == role)
        if members.size >= _FEWEST_TO_SPREAD:
            middle_F1 = np.median(time_FW[:, members], axis=1, keepdims=True)
            deviation_F = np.median(np.abs(time_FW[:, members] - middle_F1), axis=1)
            spread_FW[:, members] = _MAD_TO_DEVIATION * deviation_F[:, None]
    return _over(np.median, spread_FW, units) / np.sqrt([len(unit) for unit in units])
