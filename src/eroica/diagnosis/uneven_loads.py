"""Uneven loads: samples of different size, so that another worker has most to compute in each iteration.

Loads are told from jitter by the optimizer, whose work does not depend on them.

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.lateness_by_iteration import robust_spread
from eroica.diagnosis.speed import operators, queued_share
from eroica.diagnosis.view import View
from eroica.diagnosis.wandering import GROWN, OFTEN, Loss, heaviest, rotating_candidate, strength_of
from eroica.diagnosis.words import format_ms
from eroica.model.shares import percent
from eroica.model.window import ALONE, SLOWER

Floats = NDArray[np.float64]
_STEPS = ("forward", "backward", "optimizer")
#: Forward and backward differ between workers by this much beyond what the optimizer differs by. Healthy
#: workers: 5 % on busy cores, 1 % on devices.
_UNEVEN_CPU = 0.08
_UNEVEN_DEVICE = 0.04
_MORE_UNEVEN = 2.0
#: Loads are told from jitter by the optimizer's steadiness, so they need cost no more than jitter does.
_LEAST_GAIN_UNEVEN = 0.04
#: Loads are drawn anew for each worker and iteration: so many draws show how much they differ.
_FEWEST_DRAWS = 3
_LEAST_OBSERVED = 40


def find_uneven_loads(view: View) -> Iterator[Candidate]:
    """Accuse samples of different size: forward and backward differ from worker to worker, the optimizer does not."""
    rows = operators(view.fleet)
    by_phase = {phase: [row for row in rows if view.fleet.keys[row].phase == phase] for phase in _STEPS}
    if view.iterations < _FEWEST_DRAWS or view.workers * view.iterations < _LEAST_OBSERVED:
        return
    if not all(by_phase.values()) or (view.is_crowded.any() and not view.fleet.has_accelerator):
        return
    load_rows = by_phase["forward"] + by_phase["backward"]
    load_WI, fixed_WI = view.fleet.series(load_rows), view.fleet.series(by_phase["optimizer"])
    if not (load_WI > 0).all() or not (fixed_WI > 0).all():
        return
    load, fixed = _deviation(load_WI), _deviation(fixed_WI)
    own, same, apart = robust_spread(load), robust_spread(fixed), robust_spread(load - fixed)
    least = _UNEVEN_DEVICE if view.fleet.has_accelerator else max(_UNEVEN_CPU, _by_chance(view))
    mean_I = load_WI.mean(axis=0)
    lost_I = load_WI.max(axis=0) - mean_I
    top = int(np.bincount(load_WI.argmax(axis=0), minlength=view.workers).max())
    is_of_one = top >= max(OFTEN, 1 / view.workers + 0.2) * view.iterations
    if min(own, apart) < least or own < _MORE_UNEVEN * same or is_of_one:
        return
    if _was_uneven(view, load_rows, float(lost_I.mean())):
        return
    yield _uneven(view, load_rows, load_WI, (own, same))


def _by_chance(view: View) -> float:
    """Estimate how much threads that wait for a core differ whatever they compute: about as much as they wait.

    The optimizer does not show it: it is so short that few of its turns are hit, and those count for little.
    """
    queued_W = queued_share(view.fleet)
    return 0.0 if np.isnan(queued_W).all() else float(np.nanmean(queued_W))


def _deviation(time_WI: Floats) -> Floats:
    """Return the logarithm of each time by the worker's own median, then by the iteration's. float64 [W, I]."""
    own = np.log(time_WI)
    own = own - np.median(own, axis=1, keepdims=True)
    return np.asarray(own - np.median(own, axis=0))


def _was_uneven(view: View, rows: list[int], lost_us: float) -> bool:
    """True if the baseline window lost about as much to uneven loads, in a window opened for a later change."""
    if view.suspects.baseline is None or view.context.window.purpose not in SLOWER:
        return False
    before_WJ = view.before(rows)
    known = before_WJ[~np.isnan(before_WJ).any(axis=1)]
    return bool(known.size) and GROWN * float((known.max(axis=0) - known.mean(axis=0)).mean()) >= lost_us


def _uneven(view: View, rows: list[int], load_WI: Floats, spreads: tuple[float, float]) -> Candidate:
    mean_I, longest = load_WI.mean(axis=0), load_WI.max(axis=0)
    lost = float((longest - mean_I).mean())
    focus = heaviest(view, rows, view.fleet.critical_us[rows].mean(axis=1))
    workers = len(np.unique(load_WI.argmax(axis=0)))
    sentence = (
        f"Workers get different amounts of work at the same speed, another one the most each time: whoever has most "
        f"computes {format_ms(lost)} longer than the mean in each {format_ms(view.iteration_us)} iteration, and all "
        "others wait."
    )
    evidence = (
        f"Forward and backward take the longest worker {format_ms(float(longest.mean()))} per iteration, the mean "
        f"{format_ms(float(mean_I.mean()))}; {workers} different workers are the longest in {view.iterations} "
        "iterations.",
        f"From worker to worker they differ by {percent(spreads[0])} (standard deviation within an iteration), the "
        f"optimizer's operators by {percent(spreads[1])}: the processors are equally fast, the samples not equally "
        "long.",
    )
    found = rotating_candidate(
        view,
        ("load-imbalance", "compute"),
        msgspec.structs.replace(focus, functions=tuple(rows)),
        Loss(removed_us=np.maximum(load_WI - mean_I, 0.0), mean_us=lost, strength=strength_of(longest - mean_I)),
        sentence,
        evidence,
    )
    least = view.settings.expected_collective if view.context.window.purpose in ALONE else _LEAST_GAIN_UNEVEN
    return msgspec.structs.replace(found, least_gain=max(least, view.settings.min_gain))
