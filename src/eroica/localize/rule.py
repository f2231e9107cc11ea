"""Equation 11 over arrays: which functions are abnormal on which workers.

Array suffixes: F functions, W workers, 3 = (β, μ, σ). One function after another, on several threads where there are
many workers: NumPy does without the interpreter's lock, and what a function needs beside its input is a few [W].
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.peers import BETA_FLOOR, USE_FLOOR, peer_distances
from eroica.localize.roles import members_of
from eroica.localize.suspects import Why
from eroica.model.pattern import FunctionKey
from eroica.settings import Settings

Floats = NDArray[np.float64]
#: Standard error of the time that some workers (intp [A]) spend in a function, microseconds. float64 [A].
Noise = Callable[[int, NDArray[np.intp]], Floats]
#: A cost must exceed the worker's own noise by this many standard errors to make a different pattern a suspect.
_NOISE_ERRORS = 2.0
#: From so many workers on threads gain more than they cost.
_MANY_WORKERS = 50_000
#: More threads would only wait for memory.
_MOST_THREADS = 8


class Behavior(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Input of the rule.

    Attributes:
        keys: The functions.
        pattern: (β, μ, σ), as `Fleet.pattern`. float64 or float32 [F, W, 3].
        critical_us: Critical time per iteration. float64 or float32 [F, W].
        peers_us: What is usual in the role (`Fleet.usual`); NaN without any. [F, W].
        before_us: The same worker's time in the baseline window; NaN without one. [F, W].
        roles: Role of each worker. intp [W].
        mean_iteration_us: Mean iteration, which β is a share of.
        has_accelerator: Any worker saw device kernels.
    """

    keys: Sequence[FunctionKey]
    pattern: Floats
    critical_us: Floats
    peers_us: Floats
    before_us: Floats
    roles: NDArray[np.intp]
    mean_iteration_us: float
    has_accelerator: bool


class Flagged(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One function on the workers that one half of the rule flags.

    Attributes:
        function: Index of the function.
        why: Which half.
        workers: Indices of the workers, at least one. intp [A].
        distance: From expectation, or share of peers that differ. float64 [A].
        excess_us: Critical time above the reference; NaN without one. float64 [A].
    """

    function: int
    why: Why
    workers: NDArray[np.intp]
    distance: Floats
    excess_us: Floats


def flag_functions(behavior: Behavior, noise: Noise, settings: Settings) -> Iterator[Flagged]:
    """Flag workers by eq. 11, function by function.

    Args:
        behavior: All workers.
        noise: Asked for workers whose β stands out.
        settings: Gates and floors of localization.

    Source:
        EROICA, section 4.3, eq. 11: abnormal iff β > `beta_gate` and (distance from expectation > 0 or the differential
        distance stands out). Deviation: a worker that stands out through β must also lose more time to the function
        than its peers, beyond its own noise and `BETA_FLOOR`. Below these the distance counts nothing. Without that
        the culprit of a slow loader stands out in all-reduce, where it waits least. Standing out through μ or σ needs
        no such cost.
    """
    gated = [at for at, pattern_W3 in enumerate(behavior.pattern) if pattern_W3[:, 0].max() > settings.beta_gate]
    for flagged in _mapped(lambda function: _flag(behavior, function, noise, settings), gated, behavior.roles.size):
        yield from flagged


def _mapped(flag: Callable[[int], list[Flagged]], functions: list[int], workers: int) -> Iterable[list[Flagged]]:
    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    if workers < _MANY_WORKERS or threads < 2:
        return map(flag, functions)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(flag, functions))


def _flag(behavior: Behavior, function: int, noise: Noise, settings: Settings) -> list[Flagged]:
    excess_W = np.asarray(behavior.critical_us[function] - behavior.peers_us[function], dtype=np.float64)
    change_W = np.asarray(behavior.critical_us[function] - behavior.before_us[function], dtype=np.float64)
    over_W = np.where(np.isnan(change_W), excess_W, change_W)
    beyond_W, distance_W = _expectation(behavior, function, settings)
    found = _flagged(function, "expectation", beyond_W, distance_W, over_W)
    unique_W, share_W = _peers(behavior, function, excess_W, noise, settings)
    return found + _flagged(function, "peers", unique_W & ~beyond_W, share_W, excess_W)


def _flagged(
    function: int, why: Why, flags_W: NDArray[np.bool_], distance_W: Floats, excess_W: Floats
) -> list[Flagged]:
    workers = np.flatnonzero(flags_W)
    if not workers.size:
        return []
    return [
        Flagged(
            function=function,
            why=why,
            workers=workers,
            distance=distance_W[workers],
            excess_us=excess_W[workers],
        )
    ]


def _expectation(behavior: Behavior, function: int, settings: Settings) -> tuple[NDArray[np.bool_], Floats]:
    """Workers beyond the expected range, and how far. bool [W], float64 [W]."""
    beta_W = np.asarray(behavior.pattern[function, :, 0], dtype=np.float64)
    before_W = behavior.before_us[function]
    reference_us = np.where(np.isnan(before_W), behavior.peers_us[function], before_W)
    per_us = 1.0 / max(behavior.mean_iteration_us, 1e-9)
    distance_W = distance_from_expectation(
        behavior.keys[function], beta_W, reference_us * per_us, behavior.has_accelerator, settings
    )
    return (beta_W > settings.beta_gate) & (distance_W > 0), distance_W


def _peers(
    behavior: Behavior, function: int, excess_W: Floats, noise: Noise, settings: Settings
) -> tuple[NDArray[np.bool_], Floats]:
    """Workers whose pattern stands out, and the share of peers it differs from. bool [W], float64 [W]."""
    pattern_W3 = behavior.pattern[function]
    above_W = pattern_W3[:, 0] > settings.beta_gate
    share_W, unique_W = peer_distances(pattern_W3, behavior.roles)
    gated_W = unique_W & above_W
    gated = np.flatnonzero(gated_W)
    if not gated.size:
        return gated_W, share_W
    least_us = BETA_FLOOR * behavior.mean_iteration_us
    costs = (excess_W[gated] >= least_us) & (excess_W[gated] > _NOISE_ERRORS * noise(function, gated))
    if not costs.all():
        costs |= _stands_out_by_hardware(pattern_W3, behavior.roles)[gated]
    gated_W[gated] = costs
    return gated_W, share_W


def _stands_out_by_hardware(pattern_W3: Floats, roles_W: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Workers whose μ and σ stand out, whatever their β: from the role's median, not only from those at its other end.

    σ is an estimate itself: among healthy workers it differs by a third, and a few of hundreds have twice the usual
    one. So alone it must differ by twice the floor. bool [W].
    """
    without_beta = np.where(pattern_W3[:, :1] > 0, pattern_W3, np.asarray(np.nan, dtype=pattern_W3.dtype))
    without_beta[:, 0] = 0.0
    far_W = np.zeros(roles_W.size, dtype=np.bool_)
    for members in members_of(roles_W):
        use_W2 = without_beta[members, 1:].astype(np.float64)
        known = use_W2[~np.isnan(use_W2).any(axis=1)]
        if known.size:
            apart_W2 = np.abs(use_W2 - np.median(known, axis=0))
            far_W[members] = (apart_W2 >= USE_FLOOR * np.asarray([1.0, 2.0])).any(axis=1)
    return far_W & peer_distances(without_beta, roles_W)[1]


# --- distance from expectation: how far a function's β lies outside what its class may take (EROICA, eq. 6 and 7) ---


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
