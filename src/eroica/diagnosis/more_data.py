"""Workers that compute on more data than their peers: equally many operators, each on larger tensors.

A slow processor slows everything. More data slows forward and backward, but not the optimizer, whose work is the number
of parameters. What is longer in backward alone is no data: that would have gone through forward, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.limits import HELD
from eroica.diagnosis.speed import (
    BACKWARD,
    EXPLAINED_BY_QUEUE,
    FORWARD,
    WITH_DATA,
    WITHOUT_DATA,
    held_share,
    operators,
    queued_share,
    running_us,
    speed_against_baseline,
)
from eroica.diagnosis.view import View
from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]
#: The optimizer may share this much of the slowness: with more data it shares nothing, on a slow processor all of it,
#: and noise moves both alike.
_MOST_SHARED = 0.5
#: Forward takes longer by at least this share of what backward does.
_LEAST_OF_BACKWARD = 0.15
#: More data is computed on: the processor is busy for so much of the additional time, which a thread that waits for a
#: core is not.
_COMPUTES = 0.35
#: Devices run at the same speed if their utilization differs by less than this share.
_SAME_SPEED = 0.05
#: What a lower clock may account for of it: heavier kernels lower the clock of a device at its power limit.
_MOST_BY_CLOCK = 0.5


def has_more_data(view: View) -> NDArray[np.bool_]:
    """Mark workers whose forward and backward take longer while their optimizer does not. bool [W].

    On an accelerator the optimizer is bound by memory, which a low clock spares as well: there the device's own speed
    must be known and equal, too.
    """
    more_W, grows_W = _more_than_peers(view)
    more_W &= _computes(view, lambda read: view.fleet.usual(read(view.fleet)), grows_W)
    if more_W.any():
        usual_W = view.fleet.usual(queued_share(view.fleet))
        more_W &= ~_waits_for_cores(view, usual_W, grows_W)
    return np.asarray(more_W & (held_share(view.fleet) <= HELD) & _runs_at_full_speed(view), dtype=np.bool_)


def may_have_more_data(view: View) -> NDArray[np.bool_]:
    """Mark workers that may have more data, but nobody knows how fast their devices run. bool [W]."""
    if not view.fleet.has_accelerator:
        return np.zeros(view.workers, dtype=np.bool_)
    return np.asarray(_more_than_peers(view)[0] & (_mean_use(view.fleet) == 0))


def _more_than_peers(view: View) -> tuple[NDArray[np.bool_], Floats]:
    """Mark workers whose operators take longer as with more data; and the factor of forward and backward. [W] each."""
    grows_W, fixed_W = view.factors_by_data
    more_W = np.asarray([is_data(grows, fixed) for grows, fixed in zip(grows_W, fixed_W, strict=True)], dtype=np.bool_)
    if more_W.any():
        forward, backward = view.speed_by_pass
        more_W &= _goes_through(forward.factor, backward.factor)
    return more_W, grows_W


def _goes_through(forward_W: Floats, backward_W: Floats) -> NDArray[np.bool_]:
    """Mark workers whose forward, too, takes longer where backward does, as far as both have operators. bool [W]."""
    return np.asarray(~(forward_W - 1 < _LEAST_OF_BACKWARD * (backward_W - 1)), dtype=np.bool_)


def in_backward_evidence(view: View, members: NDArray[np.intp]) -> tuple[str, ...]:
    """Say that operators of backward alone take longer than on peers, where they do."""
    forward, backward = (speed.factor[members].mean(keepdims=True) for speed in view.speed_by_pass)
    if not backward[0] > 1 or _goes_through(forward, backward)[0]:
        return ()
    return (
        f"Only operators of backward take longer, {backward[0]:.2f} times; those of forward take {forward[0]:.2f} "
        "times as long, so it is not that tensors are larger.",
    )


def has_more_data_since(view: View) -> NDArray[np.bool_]:
    """Mark workers with more data than in the baseline window: batches or sequences have grown. bool [W].

    An accelerator's clock must account for less than half of it; where nobody knows the clock, that cannot be told from
    a processor that is slow while its memory is not (`growth.describe_growth` says so).
    """
    if view.suspects.baseline is None:
        return np.zeros(view.workers, dtype=np.bool_)
    grows_W, fixed_W = _factors_since(view)
    more_W = np.asarray([is_data(grows, fixed) for grows, fixed in zip(grows_W, fixed_W, strict=True)])
    more_W &= _computes(view, view.then, grows_W)
    if more_W.any():
        more_W &= ~_waits_for_cores(view, view.then(queued_share), grows_W)
    if more_W.any():
        more_W &= _goes_through(*(speed_against_baseline(view.suspects, one).factor for one in (FORWARD, BACKWARD)))
    if view.fleet.has_accelerator:
        now_W, then_W = _mean_use(view.fleet), view.then(_mean_use)
        known_W = (now_W > 0) & (then_W > 0)
        by_clock_W = np.where(known_W, then_W / np.maximum(now_W, 1e-9), 1.0)
        more_W &= np.maximum(by_clock_W - 1, 0.0) <= _MOST_BY_CLOCK * (grows_W - 1)
    return np.asarray(more_W & (held_share(view.fleet) <= HELD), dtype=np.bool_)


def _computes(view: View, usual: Callable[[Callable[[Fleet], Floats]], Floats], grows_W: Floats) -> NDArray[np.bool_]:
    """Mark workers whose processor is busy for as much longer, hardly runs operators, or was not sampled. bool [W]."""
    usual_W = usual(running_us)
    hardly_W = usual_W < _COMPUTES * usual(lambda fleet: fleet.total_us[operators(fleet)].sum(axis=0))
    too_little_W = running_us(view.fleet) / usual_W - 1 < _COMPUTES * (grows_W - 1)
    return np.asarray(hardly_W | ~too_little_W, dtype=np.bool_)


def _waits_for_cores(view: View, usual_W: Floats, grows_W: Floats) -> NDArray[np.bool_]:
    """Mark workers whose waits for a core explain what forward and backward take longer. bool [W].

    A worker with more to compute waits for a core as much more often.

    Args:
        view: The window.
        usual_W: Share of the time for which the reference waited for a core, NaN where unknown. float64 [W].
        grows_W: Factor by which forward and backward take longer than the reference. float64 [W].
    """
    if view.fleet.has_accelerator:
        return np.zeros(view.workers, dtype=np.bool_)
    rows = [row for row in operators(view.fleet) if view.fleet.keys[row].phase in WITH_DATA]
    more_us_W = view.fleet.critical_us[rows].sum(axis=0) * (1 - 1 / np.maximum(np.nan_to_num(grows_W, nan=1.0), 1.0))
    longer_W = queued_share(view.fleet) - usual_W * np.maximum(np.nan_to_num(grows_W, nan=1.0), 1.0)
    waits_us_W = np.nan_to_num(longer_W) * view.iteration_us
    return np.asarray((waits_us_W > 0) & (waits_us_W >= EXPLAINED_BY_QUEUE * more_us_W), dtype=np.bool_)


def growth_since(view: View) -> tuple[float, float]:
    """Return the factors by which forward and backward, and the optimizer, exceed the baseline window; medians."""
    grows_W, fixed_W = _factors_since(view)
    return float(np.nanmedian(grows_W)), float(np.nanmedian(fixed_W))


def _factors_since(view: View) -> tuple[Floats, Floats]:
    with_data, without = (speed_against_baseline(view.suspects, own) for own in (WITH_DATA, WITHOUT_DATA))
    return with_data.factor, without.factor


def is_data(grows: float, fixed: float) -> bool:
    """True if factors of forward and backward (`grows`) and of the optimizer (`fixed`) together mean more data."""
    return bool(grows > 1 and fixed - 1 <= _MOST_SHARED * (grows - 1))


def _runs_at_full_speed(view: View) -> NDArray[np.bool_]:
    """Mark workers without a sign of a slower device; with an accelerator, those sampled at full speed. bool [W]."""
    if not view.fleet.has_accelerator:
        return np.ones(view.workers, dtype=np.bool_)
    mean_W = _mean_use(view.fleet)
    usual_W = view.fleet.usual(mean_W)
    return np.asarray((mean_W > 0) & (mean_W >= (1 - _SAME_SPEED) * usual_W), dtype=np.bool_)


def _mean_use(fleet: Fleet) -> Floats:
    """Return the mean use of what bounds the operators, on a device the share of its highest clock; 0: unknown. [W]."""
    rows = operators(fleet)
    use_FW, time_FW = fleet.pattern[rows][:, :, 1], fleet.critical_us[rows]
    known_FW = np.where(np.isnan(use_FW), 0.0, time_FW)
    return np.asarray((np.nan_to_num(use_FW) * known_FW).sum(axis=0) / np.maximum(known_FW.sum(axis=0), 1e-9))


def more_data_evidence(view: View, members: NDArray[np.intp]) -> tuple[str, ...]:
    """State both factors, and what they mean."""
    grows, fixed = (float(np.nanmean(factor_W[members])) for factor_W in view.factors_by_data)
    whose = "its" if members.size == 1 else "their"
    return (
        f"Operators of forward and backward run as often as on {whose} peers and take {grows:.2f} times as long, "
        f"those of the optimizer {fixed:.2f} times: the processor is as fast, the tensors are larger.",
    )
