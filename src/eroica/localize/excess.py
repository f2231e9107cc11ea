"""How much more critical time per iteration a worker spends than its peers, or than itself before.

Array suffixes: W workers, I iterations, F functions (or any other leading axis).
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: One recorded iteration says nothing about noise: a time is taken to vary by this share of itself, as functions of
#: healthy workers do, so that no excess is stronger than 3.3 standard errors.
UNKNOWN_NOISE = 0.3


class Excess(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Time per iteration above a reference.

    Attributes:
        mean_us: Mean over iterations. float64 [W].
        reference_us: What it is compared with; NaN where there is none. float64 [W].
        error_us: Standard error of the difference. float64 [W].
    """

    mean_us: Floats
    reference_us: Floats
    error_us: Floats

    @property
    def excess_us(self) -> Floats:
        """Mean above the reference; NaN without one. float64 [W]."""
        return np.asarray(self.mean_us - self.reference_us)

    @property
    def strength(self) -> Floats:
        """Excess in standard errors; 0 without a reference. float64 [W]."""
        ratio = self.excess_us / np.maximum(self.error_us, 1e-9)
        return np.nan_to_num(ratio, nan=0.0, posinf=0.0, neginf=0.0)


def median_of_others(values: Floats, roles_W: NDArray[np.intp]) -> Floats:
    """For each worker the median over the other workers of its role.

    Args:
        values: Any leading axes, workers last. float64 [..., W].
        roles_W: Role of each worker. intp [W].

    Returns:
        float64 [..., W]; NaN for a worker alone in its role.
    """
    result = np.full(values.shape, np.nan)
    for role in np.unique(roles_W):
        members = np.flatnonzero(roles_W == role)
        if members.size > 1:
            result[..., members] = _leave_one_out_median(values[..., members])
    return result


def _leave_one_out_median(values: Floats) -> Floats:
    """Median of the others along the last axis, from one sort. Needs at least two."""
    others = values.shape[-1] - 1
    order = np.argsort(values, axis=-1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(others + 1), values.shape).copy(), axis=-1)
    ranked = np.take_along_axis(values, order, axis=-1)
    low = _of_others(ranked, place, (others - 1) // 2)
    return np.asarray((low + _of_others(ranked, place, others // 2)) / 2)


def _of_others(ranked: Floats, place: NDArray[np.intp], index: int) -> Floats:
    """Element `index` of the sorted values once each worker's own is taken out."""
    return np.where(place > index, ranked[..., index : index + 1], ranked[..., index + 1 : index + 2])


def excess_over_peers(time_WI: Floats, roles_W: NDArray[np.intp], factor_W: Floats | None = None) -> Excess:
    """Time above the median of the peers of the same role.

    Args:
        time_WI: Critical microseconds per iteration. float64 [W, I].
        roles_W: Role of each worker. intp [W].
        factor_W: By how much a worker's peers' time is scaled first (a worker on which everything takes 1.5 times as
            long is allowed 1.5 times its peers' time here). float64 [W].
    """
    mean_W = time_WI.mean(axis=1)
    error_W = mean_error(time_WI)
    reference_W = median_of_others(mean_W, roles_W)
    peers_error_W = np.nan_to_num(median_of_others(error_W, roles_W), posinf=np.inf)
    scale_W = np.ones_like(mean_W) if factor_W is None else factor_W
    return Excess(
        mean_us=mean_W, reference_us=reference_W * scale_W, error_us=np.hypot(error_W, peers_error_W * scale_W)
    )


def excess_over_baseline(time_WI: Floats, before_WJ: Floats, factor_W: Floats | None = None) -> Excess:
    """Time above the same worker's in the job's healthy baseline window.

    Args:
        time_WI: Critical microseconds per iteration now. float64 [W, I].
        before_WJ: The same then; rows of NaN where a worker has no baseline. float64 [W, J].
        factor_W: By how much the earlier time is scaled first. float64 [W].
    """
    scale_W = np.ones(time_WI.shape[0]) if factor_W is None else factor_W
    return Excess(
        mean_us=time_WI.mean(axis=1),
        reference_us=before_WJ.mean(axis=1) * scale_W,
        error_us=np.hypot(mean_error(time_WI), np.nan_to_num(standard_error(before_WJ), posinf=np.inf) * scale_W),
    )


def standard_error(time_WI: Floats) -> Floats:
    """Standard error of each row's mean, the row's own noise. float64 [W]; infinite with fewer than two iterations."""
    iterations = time_WI.shape[1]
    if iterations < 2:
        return np.full(time_WI.shape[0], np.inf)
    return np.asarray(time_WI.std(axis=1, ddof=1) / np.sqrt(iterations))


def mean_error(time_WI: Floats) -> Floats:
    """Standard error of each row's mean; of a single iteration, a share of its time. float64 [W]."""
    return standard_error(time_WI) if time_WI.shape[1] != 1 else np.asarray(UNKNOWN_NOISE * np.abs(time_WI[:, 0]))
