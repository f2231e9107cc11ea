"""Which functions are abnormal on which workers, and who waits for whom: patterns of all workers to suspects."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.localize.arrivals import Arrivals, read_arrivals
from eroica.localize.excess import median_of_others
from eroica.localize.expectation import distance_from_expectation
from eroica.localize.fleet import Fleet, build_fleet
from eroica.localize.peers import peer_distances
from eroica.localize.suspects import SuspectRow, Suspects, Why
from eroica.model.pattern import WorkerPattern
from eroica.settings import Settings

__all__ = ["Arrivals", "Fleet", "SuspectRow", "Suspects", "localize"]

Floats = NDArray[np.float64]
#: A cost must exceed the worker's own noise by this many standard errors to make a different pattern a suspect.
_NOISE_ERRORS = 2.0


def localize(patterns: Sequence[WorkerPattern], baseline: Sequence[WorkerPattern], settings: Settings) -> Suspects:
    """Compare the workers of one window with expectation, with their peers and with their own healthy past.

    Args:
        patterns: One per worker that reported this window.
        baseline: The same of the job's baseline window; may be empty.
        settings: Gates and floors of localization.

    Returns:
        Suspects; deterministic for equal input.

    Raises:
        InputError: There is no pattern at all, or the workers share no iteration.

    Source:
        EROICA, section 4.3; the deviations stand at each equation's function.
    """
    if not patterns:
        raise InputError("no worker handed over a pattern for this window; look into the workers' notes")
    fleet = build_fleet(patterns, settings)
    if fleet.iteration_us.shape[1] == 0:
        raise InputError("the workers captured no iteration in common")
    past = build_fleet(baseline, settings) if baseline else None
    usable = past is not None and past.iteration_us.shape[1] > 0 and bool(set(past.ranks) & set(fleet.ranks))
    before = align_baseline(fleet, past if usable else None)
    peers = median_of_others(fleet.critical_us, fleet.roles)
    return Suspects(
        fleet=fleet,
        baseline=past if usable else None,
        before_us=before,
        peers_us=peers,
        excess_us=np.where(np.isnan(before), fleet.critical_us - peers, fleet.critical_us - before),
        abnormal=find_abnormal(fleet, peers, before, settings),
        arrivals=read_arrivals(fleet),
        notes=() if usable or not baseline else ("the baseline window shares no worker with this one",),
    )


def align_baseline(fleet: Fleet, baseline: Fleet | None) -> Floats:
    """Baseline times on the fleet's functions and workers.

    Returns:
        Microseconds per iteration. float64 [F, W]; 0 where the worker did not run the function then, NaN where it has
        no baseline.
    """
    before = np.full(fleet.critical_us.shape, np.nan)
    if baseline is None:
        return before
    columns = {rank: column for column, rank in enumerate(baseline.ranks)}
    places = {key: place for place, key in enumerate(baseline.keys)}
    rows = np.asarray([places.get(key, -1) for key in fleet.keys], dtype=np.intp)
    for worker, rank in enumerate(fleet.ranks):
        if rank in columns:
            before[:, worker] = np.where(rows >= 0, baseline.critical_us[rows, columns[rank]], 0.0)
    return before


def find_abnormal(fleet: Fleet, peers_us: Floats, before_us: Floats, settings: Settings) -> tuple[SuspectRow, ...]:
    """Functions and workers that eq. 11 flags.

    Source:
        EROICA, section 4.3, eq. 11: abnormal iff β > `beta_gate` and (distance from expectation > 0 or the differential
        distance stands out). Deviation: a worker that stands out through β must also lose more time to the function
        than its peers, beyond its own noise; without that the culprit of a slow loader stands out in all-reduce,
        where it waits least. Standing out through μ or σ needs no such cost.
    """
    rows: list[SuspectRow] = []
    for function in np.flatnonzero(fleet.pattern[:, :, 0].max(axis=1) > settings.beta_gate):
        beyond_W, distance_W = _expectation(fleet, int(function), peers_us, before_us, settings)
        excess_W = fleet.critical_us[function] - peers_us[function]
        change_W = fleet.critical_us[function] - before_us[function]
        over_W = np.where(np.isnan(change_W), excess_W, change_W)
        rows += _row(fleet, int(function), "expectation", beyond_W, distance_W, over_W)
        unique_W, share_W = _peers(fleet, int(function), excess_W, settings)
        rows += _row(fleet, int(function), "peers", unique_W & ~beyond_W, share_W, excess_W)
    return tuple(sorted(rows, key=lambda row: (-_sortable(row.excess_us), -row.beta, row.key)))


def _sortable(excess: float) -> float:
    return 0.0 if math.isnan(excess) else excess


def _expectation(
    fleet: Fleet, function: int, peers_us: Floats, before_us: Floats, settings: Settings
) -> tuple[NDArray[np.bool_], Floats]:
    """Workers beyond the expected range, and how far. bool [W], float64 [W]."""
    beta_W = fleet.pattern[function, :, 0]
    per_us = 1.0 / max(fleet.mean_iteration_us, 1e-9)
    reference_us = np.where(np.isnan(before_us[function]), peers_us[function], before_us[function])
    distance_W = distance_from_expectation(
        fleet.keys[function], beta_W, reference_us * per_us, fleet.has_accelerator, settings
    )
    return (beta_W > settings.beta_gate) & (distance_W > 0), distance_W


def _peers(fleet: Fleet, function: int, excess_W: Floats, settings: Settings) -> tuple[NDArray[np.bool_], Floats]:
    """Workers whose pattern stands out, and the share of peers it differs from. bool [W], float64 [W]."""
    pattern_W3 = fleet.pattern[function]
    share_W, unique_W = peer_distances(pattern_W3, fleet.roles, settings)
    gated_W = unique_W & (pattern_W3[:, 0] > settings.beta_gate)
    if not gated_W.any():
        return gated_W, share_W
    noise_us = _NOISE_ERRORS * _own_noise(fleet, function)
    without_beta = np.where(pattern_W3[:, :1] > 0, pattern_W3, np.nan)
    without_beta[:, 0] = 0.0
    by_hardware_W = peer_distances(without_beta, fleet.roles, settings)[1] & (pattern_W3[:, 0] > settings.beta_gate)
    return gated_W & ((excess_W > noise_us) | by_hardware_W), share_W


def _own_noise(fleet: Fleet, function: int) -> Floats:
    """Standard error of each worker's time in a function. float64 [W]."""
    series = fleet.series([function])
    spread = series.std(axis=1) / np.sqrt(max(series.shape[1], 1))
    return np.asarray(np.maximum(spread, fleet.error_us[function]))


def _row(
    fleet: Fleet, function: int, why: Why, flags_W: NDArray[np.bool_], distance_W: Floats, excess_W: Floats
) -> list[SuspectRow]:
    workers = np.flatnonzero(flags_W)
    if not workers.size:
        return []
    return [
        SuspectRow(
            key=fleet.keys[function],
            workers=tuple(fleet.ranks[worker] for worker in workers),
            why=why,
            beta=float(fleet.pattern[function, workers, 0].mean()),
            distance=float(distance_W[workers].max()),
            excess_us=float(excess_W[workers].mean()),
        )
    ]
