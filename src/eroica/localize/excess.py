"""Measure how much more critical time per iteration a worker spends than its peers, or than itself before.

Array suffixes: W workers, I iterations, F functions (or any other leading axis).
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.roles import members_of

Floats = NDArray[np.float64]
#: So many values are ranked together; more at once is only more memory.
_BLOCK_VALUES = 1 << 20
#: One recorded iteration says nothing about noise: a time is taken to vary by this share of itself, as functions of
#: healthy workers do, so that no excess is stronger than 3.3 standard errors.
UNKNOWN_NOISE = 0.3
#: A distance from peers that happens to be the same in fewer iterations looks like certainty.
_FEWEST_PAIRED = 8
#: Where everybody has the same long iterations, pairing leaves less than this share of the error.
_MOSTLY_COMMON = 0.5
#: Difference in standard errors from which it is no accident.
SURE = 3.0


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


def find_measure(wait_WI: Floats, roles_W: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Mark the workers of each role that tell what is usual in it: all, or those that wait where most are late.

    A job is as fast as its slowest workers, so that whoever waits is not late, and a median over all is that of workers
    in time while fewer than half are late. Where only a minority waits, surely longer than all others and alike, it is
    the measure alone. Of a single one nobody tells whether it just has less to do.

    Args:
        wait_WI: Time in which each worker waits for others. float64 [W, I].
        roles_W: Role of each worker. intp [W].
    """
    mean_W, error_W, found_W = wait_WI.mean(axis=1), mean_error(wait_WI), np.ones(roles_W.size, dtype=np.bool_)
    for members in members_of(roles_W):
        order = members[np.argsort(mean_W[members], kind="stable")]
        gaps = np.diff(mean_W[order])
        late, waiting = np.split(order, [int(gaps.argmax()) + 1] if gaps.size else [0])
        if 1 < waiting.size < late.size:
            spread = mean_W[waiting[-1]] - mean_W[waiting[0]]
            noise = SURE * np.hypot(error_W[late].max(), error_W[waiting].max())
            found_W[late] = gaps.max() <= max(spread, noise)
    return found_W


def median_of_others(values: Floats, roles_W: NDArray[np.intp], measure_W: NDArray[np.bool_] | None = None) -> Floats:
    """Take for each worker the median over the other workers of its role.

    Args:
        values: Any leading axes, workers last. float64 or float32 [..., W].
        roles_W: Role of each worker. intp [W].
        measure_W: The workers that count; None for all. bool [W].

    Returns:
        [..., W], of the type of `values`; NaN for a worker alone in its role.
    """
    result = np.full(values.shape, np.nan, dtype=values.dtype)
    lines, medians = values.reshape(-1, values.shape[-1]), result.reshape(-1, values.shape[-1])
    together = max(_BLOCK_VALUES // max(values.shape[-1], 1), 1)
    for members in members_of(roles_W):
        counted_W = np.ones(members.size, dtype=np.bool_) if measure_W is None else measure_W[members]
        counted, beside = members[counted_W], members[~counted_W]
        if counted.size > 1:
            for first in range(0, lines.shape[0], together):
                block = slice(first, first + together)
                found = lines[block, counted]
                medians[block, counted] = _leave_one_out_median(found)
                if beside.size:  # of whom all that count are others
                    nobody = np.full((found.shape[0], 1), np.nan, dtype=found.dtype)
                    medians[block, beside] = _leave_one_out_median(np.hstack([found, nobody]))[:, -1:]
    return result


def _leave_one_out_median(values: Floats) -> Floats:
    """Median of the others along the last axis, from the three values around the middle. Needs at least two."""
    others = values.shape[-1] - 1
    low, high = (others - 1) // 2, others // 2
    places = sorted({low, low + 1, high, high + 1})
    ranked = dict(zip(places, np.partition(values, places, axis=-1)[..., places].T, strict=True))
    lower, upper = (_of_others(values, ranked[at], ranked[at + 1]) for at in (low, high))
    return np.asarray((lower + upper) / 2)


def _of_others(values: Floats, at: Floats, beyond: Floats) -> Floats:
    """One place in the order of the values once each worker's own is taken out; NaN sorts last.

    Args:
        values: All of them. float64 [..., W].
        at: Value at that place while the own one is still in. float64 [...].
        beyond: Value at the next place. float64 [...].
    """
    return np.where(values <= at[..., None], beyond[..., None], at[..., None])


def excess_over_peers(time_WI: Floats, roles_W: NDArray[np.intp], measure_W: NDArray[np.bool_] | None = None) -> Excess:
    """Time above the median of the peers of the same role.

    Args:
        time_WI: Critical microseconds per iteration. float64 [W, I].
        roles_W: Role of each worker. intp [W].
        measure_W: The peers that count; None for all. bool [W].
    """
    reference_W = median_of_others(time_WI.mean(axis=1), roles_W, measure_W)
    error_W = mean_error(time_WI)
    error_W = np.hypot(error_W, np.nan_to_num(median_of_others(error_W, roles_W, measure_W), posinf=np.inf))
    if time_WI.shape[1] >= _FEWEST_PAIRED:
        # What one iteration has more of on everybody (an evaluation) is no noise of the distance from the peers. Many
        # peers have a steadier median than one has; the factor makes up for it.
        paired_W = standard_error(time_WI - median_of_others(time_WI.T, roles_W, measure_W).T) * np.sqrt(2)
        error_W = np.where(paired_W < _MOSTLY_COMMON * error_W, paired_W, error_W)  # of two about equal, less is luck
    return Excess(mean_us=time_WI.mean(axis=1), reference_us=reference_W, error_us=error_W)


def excess_over_baseline(time_WI: Floats, before_WJ: Floats) -> Excess:
    """Time above the same worker's in the job's healthy baseline window.

    What was seen once or twice in a short baseline window scatters little there by luck: both windows are taken to
    scatter alike (the pooled variance), as they do if nothing has changed.

    Args:
        time_WI: Critical microseconds per iteration now. float64 [W, I].
        before_WJ: The same then; rows of NaN where a worker has no baseline. float64 [W, J].
    """
    now_W, then_W = mean_error(time_WI), np.nan_to_num(standard_error(before_WJ), posinf=np.inf)
    count, counted = time_WI.shape[1], before_WJ.shape[1]
    if count > 1 and counted > 1:
        pooled_W = ((now_W * count) ** 2 + (then_W * counted) ** 2) / (count + counted)
        then_W = np.maximum(then_W, np.sqrt(pooled_W / counted))
    error_W = np.hypot(now_W, then_W)
    return Excess(mean_us=time_WI.mean(axis=1), reference_us=before_WJ.mean(axis=1), error_us=error_W)


def standard_error(time_WI: Floats) -> Floats:
    """Standard error of each row's mean, the row's own noise. float64 [W]; infinite with fewer than two iterations."""
    iterations = time_WI.shape[1]
    if iterations < 2:
        return np.full(time_WI.shape[0], np.inf)
    return np.asarray(time_WI.std(axis=1, ddof=1) / np.sqrt(iterations))


def mean_error(time_WI: Floats) -> Floats:
    """Standard error of each row's mean; of a single iteration, a share of its time. float64 [W]."""
    return standard_error(time_WI) if time_WI.shape[1] != 1 else np.asarray(UNKNOWN_NOISE * np.abs(time_WI[:, 0]))
