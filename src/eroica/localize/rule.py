"""Equation 11 of the paper: functions whose patterns (β, μ, σ) are abnormal on some workers (EROICA, section 4.3).

It is evidence for those who read `--why`; no cause rests on it, so it is worked out for the functions asked for.

Array suffixes: W workers, N sampled peers, R rows of like groups, 3 = (β, μ, σ). NaN in μ or σ means "never sampled".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize import Suspects
from eroica.localize.families import likeness_of_groups
from eroica.localize.fleet import Fleet
from eroica.localize.roles import members_of
from eroica.model.pattern import FunctionKey
from eroica.settings import Settings

Floats = NDArray[np.float64]
Why = Literal["expectation", "peers"]
#: Manhattan distance at which two patterns differ (delta, eq. 10), and peers that each one is compared with (N, eq. 9).
DELTA, PEERS = 0.4, 100
#: Multiplier of the median absolute deviation (k, eq. 11), and the least margin above the median: the MAD is usually 0.
MAD_FACTOR, MAD_FLOOR = 5.0, 0.1
#: Differences of β, and of μ and σ, below these are noise, whatever the maximum.
BETA_FLOOR, USE_FLOOR = 0.02, 0.1
#: Every run of the same window compares with the same peers.
_SEED = 20_260_401
#: Workers of a block: a few arrays of them fit into a core's cache.
_BLOCK = 32_768
#: A cost must exceed the worker's own noise by this many standard errors to make a different pattern a suspect.
_NOISE_ERRORS = 2.0


class SuspectRow(msgspec.Struct, frozen=True, kw_only=True):
    """One function that is abnormal on some workers.

    Attributes:
        key: Which function; a collective of several like groups names none of them.
        workers: Global ranks on which it is abnormal.
        why: Which half of the rule flags it: distance from expectation, or from the peers.
        beta: Mean β on those workers, 0-1.
        distance: Largest distance from expectation (`expectation`) or share of peers that differ (`peers`), 0-1.
    """

    key: FunctionKey
    workers: tuple[int, ...]
    why: Why
    beta: float
    distance: float


def flag_functions(suspects: Suspects, functions: Iterable[int], settings: Settings) -> Iterator[SuspectRow]:
    """Flag workers by eq. 11, function by function; collectives of like process groups count as one.

    Args:
        suspects: The window.
        functions: Indices into the fleet's keys.
        settings: Gates and floors of localization.

    Source:
        EROICA, section 4.3, eq. 11: abnormal iff β > `beta_gate` and (distance from expectation > 0 or the differential
        distance stands out). Deviation: a worker that stands out through β must also lose more time to the function
        than its peers, beyond its own noise and `BETA_FLOOR`. Below these the distance counts nothing. Without that
        the culprit of a slow loader stands out in all-reduce, where it waits least. Standing out through μ or σ needs
        no such cost.
    """
    fleet = suspects.fleet
    for rows in dict.fromkeys(_like_rows(fleet, function) for function in functions):
        at = list(rows)
        pattern_W3 = fleet.pattern[at[0]] if len(at) == 1 else _joined(fleet.pattern[at])
        above_W = pattern_W3[:, 0] > settings.beta_gate
        if not above_W.any():
            continue
        key = fleet.keys[at[0]] if len(at) == 1 else msgspec.structs.replace(fleet.keys[at[0]], group="")
        critical_W = fleet.critical_us[at].sum(axis=0)
        peers_W = suspects.peers_us[at[0]] if len(at) == 1 else fleet.usual(critical_W)
        before_W = suspects.before_us[at].sum(axis=0)
        reference_W = np.where(np.isnan(before_W), peers_W, before_W) / max(fleet.mean_iteration_us, 1e-9)
        far_W = distance_from_expectation(key, pattern_W3[:, 0], reference_W, fleet.has_accelerator, settings)
        beyond_W = above_W & (far_W > 0)
        share_W, unique_W = peer_distances(pattern_W3, fleet.roles)
        unlike_W = _costing(fleet, at, pattern_W3, critical_W - peers_W, unique_W & above_W & ~beyond_W)
        whys: tuple[tuple[Why, NDArray[np.bool_], Floats], ...] = (
            ("expectation", beyond_W, far_W),
            ("peers", unlike_W, share_W),
        )
        for why, flags_W, distance_W in whys:
            if flags_W.any():
                yield SuspectRow(
                    key=key,
                    workers=tuple(fleet.ranks[worker] for worker in np.flatnonzero(flags_W)),
                    why=why,
                    beta=float(pattern_W3[flags_W, 0].mean()),
                    distance=float(distance_W[flags_W].max()),
                )


def _like_rows(fleet: Fleet, function: int) -> tuple[int, ...]:
    """Return the rows that are one function: of a collective those in all groups that do the same."""
    key = fleet.keys[function]
    like = likeness_of_groups(fleet.patterns) if key.kind == "collective" else {}
    if key.group not in like:
        return (function,)
    return tuple(
        at
        for at, one in enumerate(fleet.keys)
        if (one.kind, one.name, one.phase, one.thread) == (key.kind, key.name, key.phase, key.thread)
        and like.get(one.group) == like[key.group]
    )


def _joined(pattern_RW3: Floats) -> Floats:
    """β added up, μ and σ weighted by β over rows that were sampled; NaN where none was. float64 [W, 3]."""
    beta_RW1 = pattern_RW3[..., :1]
    joined_W3 = beta_RW1.sum(axis=0).repeat(3, axis=1)
    known_RW2 = ~np.isnan(pattern_RW3[..., 1:])
    weight_W2 = (beta_RW1 * known_RW2).sum(axis=0)
    sum_W2 = (beta_RW1 * np.nan_to_num(pattern_RW3[..., 1:])).sum(axis=0)
    unknown_W2 = np.where(joined_W3[:, :1] > 0, np.nan, np.zeros(weight_W2.shape))
    joined_W3[:, 1:] = np.divide(sum_W2, weight_W2, out=unknown_W2, where=weight_W2 > 0)
    return np.asarray(joined_W3)


def _costing(
    fleet: Fleet, rows: list[int], pattern_W3: Floats, excess_W: Floats, unique_W: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Keep the workers that lose time through their other pattern, or whose hardware is used otherwise. bool [W]."""
    asked = np.flatnonzero(unique_W)
    if asked.size:
        series = fleet.series(rows, asked)
        sampled = np.sqrt((fleet.error_us[rows][:, asked] ** 2).sum(axis=0))
        noise = np.maximum(series.std(axis=1) / np.sqrt(max(series.shape[1], 1)), sampled)
        least_us = np.maximum(BETA_FLOOR * fleet.mean_iteration_us, _NOISE_ERRORS * noise)
        unique_W[asked] = (excess_W[asked] >= least_us) | _stands_out_by_hardware(pattern_W3, fleet.roles)[asked]
    return unique_W


def _stands_out_by_hardware(pattern_W3: Floats, roles_W: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return whose μ and σ stand out, whatever their β: from the role's median, not only from those at its other end.

    σ is an estimate itself: among healthy workers it differs by a third, and a few of hundreds have twice the usual
    one. So alone it must differ by twice the floor. bool [W].
    """
    without_beta = np.where(pattern_W3[:, :1] > 0, pattern_W3, np.nan)
    without_beta[:, 0] = 0.0
    far_W = np.zeros(roles_W.size, dtype=np.bool_)
    for members in members_of(roles_W):
        use_W2 = without_beta[members, 1:]
        known = use_W2[~np.isnan(use_W2).any(axis=1)]
        if known.size:
            apart_W2 = np.abs(use_W2 - np.median(known, axis=0))
            far_W[members] = (apart_W2 >= USE_FLOOR * np.asarray([1.0, 2.0])).any(axis=1)
    return far_W & peer_distances(without_beta, roles_W)[1]


# --- distance from expectation: how far a function's β lies outside what its class may take (equations 6 and 7) ---


def expected_beta(key: FunctionKey, settings: Settings) -> float:
    """Highest β a function of this class may have, 0-1.

    Source:
        EROICA, section 4.3: Python 0.01, collectives 0.30, compute kernels 1. Ours: memory operations
        `expected_memory` (the paper is silent); garbage collections, and everything inside the loader's next, count
        as Python.
    """
    if key.kind in ("python", "gc") or key.phase == "input":
        return settings.expected_python
    if key.kind == "collective":
        return settings.expected_collective
    return settings.expected_memory if key.kind == "memory" else 1.0


def distance_from_expectation(
    key: FunctionKey, beta_W: Floats, reference_W: Floats, has_accelerator: bool, settings: Settings
) -> Floats:
    """Manhattan distance from each worker's pattern to the box of expected patterns.

    The box limits β only, so the distance is `max(0, β - highest expected β)`. Without an accelerator a healthy job's
    Python exceeds 1 %: there the expectation applies to what exceeds the reference.

    Args:
        key: Which function.
        beta_W: Its β. float64 [W].
        reference_W: β of the same worker in the job's baseline window, else the median of its peers; NaN where there
            is neither. float64 [W].
        has_accelerator: Device kernels were seen in this job.
        settings: The expectations.

    Returns:
        Distances, 0-1. float64 [W].

    Source:
        EROICA, section 4.3, equations 6 and 7. Deviation: the excess rule without an accelerator, under which a worker
        without any reference is never at a distance.
    """
    highest = expected_beta(key, settings)
    if not has_accelerator and (key.kind in ("python", "gc") or key.phase == "input"):
        beta_W = beta_W - np.where(np.isnan(reference_W), beta_W, reference_W)
    return np.maximum(beta_W - highest, 0.0)


# --- differential distance: how unique a worker's pattern is among its peers (equations 8 to 11) ---


def sample_peers(workers: int, peers: int) -> NDArray[np.intp]:
    """Rows that every worker of a role is compared with: all, or a fixed random sample of `peers`. intp [N].

    Source:
        EROICA, section 4.3, eq. 9. Deviation: one sample shared by all workers; with a sample of its own for each,
        one outlier of 3,400 flags 192 workers.
    """
    if workers <= peers:
        return np.arange(workers, dtype=np.intp)
    return np.sort(np.random.default_rng(_SEED).choice(workers, size=peers, replace=False)).astype(np.intp)


def differential_distance(patterns_W3: Floats, peers_N: NDArray[np.intp]) -> Floats:
    """Share of sampled peers whose pattern differs from each worker's.

    Args:
        patterns_W3: (β, μ, σ) of one function on each worker of one role, 0-1; zeros where a worker lacks the function,
            NaN where μ and σ were never sampled. float64 or float32 [W, 3].
        peers_N: Rows everybody is compared with, each once. intp [N].

    Returns:
        Fraction of the peers other than itself at a distance of at least delta, 0-1. float64 [W].

    Source:
        EROICA, section 4.3, equations 8-10. Deviations: a difference below the floor of its dimension counts as none
        (scaling by a maximum near zero makes distance of noise); unknown μ or σ differ from nothing; a worker is no
        peer of itself.
    """
    high_3 = np.fmax.reduce(patterns_W3, axis=0, initial=0.0)
    scale_3 = np.where(high_3 > 0, high_3, 1.0)
    floors_3 = np.asarray([BETA_FLOOR, USE_FLOOR, USE_FLOOR])

    def is_far(difference_B3: Floats) -> NDArray[np.bool_]:
        return np.asarray((np.where(difference_B3 >= floors_3, difference_B3, 0.0) / scale_3).sum(axis=1) >= DELTA)

    peers_N3 = patterns_W3[peers_N].astype(np.float64)
    corners = np.fmin.reduce(peers_N3, axis=0), np.fmax.reduce(peers_N3, axis=0)
    differing_W = np.zeros(patterns_W3.shape[0], dtype=np.intp)
    for first in range(0, differing_W.size, _BLOCK):
        own_B3 = patterns_W3[first : first + _BLOCK].astype(np.float64)
        # Most workers are near to all corners of the peers' bounding box, and so to all peers.
        open_B = np.flatnonzero(is_far(np.maximum(corners[1] - own_B3, own_B3 - corners[0])))
        for peer_3 in peers_N3 if open_B.size else ():
            differing_W[first + open_B] += is_far(np.abs(own_B3[open_B] - peer_3))
    others_W = np.full(differing_W.size, peers_N.size)
    others_W[peers_N] -= 1
    return np.asarray(differing_W / np.maximum(others_W, 1), dtype=np.float64)


def outlying(distance_W: Floats) -> NDArray[np.bool_]:
    """Workers whose differential distance stands out from their role's. bool [W].

    Source:
        EROICA, section 4.3, eq. 11. Deviation: the margin above the median is at least `MAD_FLOOR`; the MAD of nearly
        equal distances is 0, and then one peer more would be enough.
    """
    middle = float(np.median(distance_W))
    spread = float(np.median(np.abs(distance_W - middle)))
    return np.asarray(distance_W > middle + max(MAD_FACTOR * spread, MAD_FLOOR), dtype=np.bool_)


def peer_distances(patterns_W3: Floats, roles_W: NDArray[np.intp]) -> tuple[Floats, NDArray[np.bool_]]:
    """Measure the differential distance inside each role, and flag the workers that stand out by it.

    Args:
        patterns_W3: Patterns of one function on all workers, as in `differential_distance`. float64 or float32 [W, 3].
        roles_W: Role of each worker. intp [W].

    Returns:
        Distances. float64 [W]; flags. bool [W]. A worker alone in its role has distance 0.
    """
    distance_W = np.zeros(patterns_W3.shape[0])
    flags_W = np.zeros(patterns_W3.shape[0], dtype=np.bool_)
    for members in members_of(roles_W):
        own = differential_distance(patterns_W3[members], sample_peers(members.size, PEERS))
        distance_W[members] = own
        flags_W[members] = outlying(own)
    return distance_W, flags_W
