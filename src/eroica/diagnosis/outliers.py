"""Find workers whose time in a group of rows exceeds their peers', their baseline, or a stated limit.

One function, `expected`, gives the time to compare with, whatever it comes from. What then makes workers late differs:
some are late if the others wait for them; all are late if most of them exceed their own baseline or a limit.

Array suffixes: W workers, I iterations, J iterations of the baseline window. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Reference
from eroica.diagnosis.frames import MOST
from eroica.diagnosis.operators import HELD, held_share
from eroica.diagnosis.view import View
from eroica.localize.excess import SURE, Excess, excess_over_baseline, mean_error

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: Excess relative to the reference from which a group differs: healthy workers on shared cores differ by 30 %.
LEAST_RATIO = 0.5
#: The same for Python that uses no core: it waits for a device, a simulator, a service.
_RATIO_WITHOUT_CORE = 0.2
#: Share of an excess that the other workers must wait for, if only some are late.
LEAST_AGREEMENT = 0.4
SOURCES: tuple[Reference, ...] = ("peers", "baseline", "expectation")
#: In so few iterations the spread alone may understate the noise of sampling.
FEW_ITERATIONS = 9
#: Fewer samples are too few to say how much of a core is used.
FEWEST_SAMPLES = 5


def expected(
    view: View, rows: Sequence[int], time_WI: Floats, source: Reference, limit: float | None = None
) -> Excess | None:
    """Compare the time of some rows with what it should be by one source.

    Args:
        view: The window.
        rows: The rows (indices into the fleet's keys).
        time_WI: Their time in each iteration. float64 [W, I].
        source: The role's other workers, the same worker's baseline window, or a limit.
        limit: Share of the iteration that they may take (0-1), for the source "expectation".

    Returns:
        Time, reference and error of each worker; None where the source tells nothing.
    """
    if source == "peers":
        excess = view.fleet.above_usual(time_WI)
        if view.is_slow and view.suspects.baseline is not None:  # who always did more has not made the job slower
            before_W = view.before(list(rows)).mean(axis=1)
            excess = msgspec.structs.replace(excess, reference_us=np.fmax(excess.reference_us, before_W))
    elif source == "baseline":
        least_us = (view.baseline_us or np.inf) * (1 + view.settings.min_gain)
        if view.suspects.baseline is None or view.iteration_us < least_us:
            return None
        excess = excess_over_baseline(time_WI, view.before(list(rows)))
    else:
        if limit is None:
            return None
        limit_W = np.full(view.workers, limit * view.iteration_us + view.recording_us)
        if view.context.window.purpose == "slow":  # what it took before the job got slow is no cause
            limit_W = np.fmax(limit_W, view.before(list(rows)).mean(axis=1))
        excess = Excess(mean_us=time_WI.mean(axis=1), reference_us=limit_W, error_us=mean_error(time_WI))
    if view.iterations > FEW_ITERATIONS:
        return excess
    join = np.hypot if view.iterations == 1 else np.maximum
    return msgspec.structs.replace(excess, error_us=join(excess.error_us, _sampling_error(view, rows)))


def _sampling_error(view: View, rows: Sequence[int]) -> Floats:
    """Return the standard error of the mean time in some rows that stems from sampling. float64 [W]."""
    return np.asarray(np.sqrt((view.fleet.error_us[list(rows)] ** 2).sum(axis=0)))


def find_outliers(
    view: View,
    rows: Sequence[int],
    *,
    limit: float | None = None,
    strength: float = SURE,
    ratio: float = LEAST_RATIO,
) -> Iterator[Block]:
    """Yield all ways in which a group of rows takes too long.

    Args:
        view: The window.
        rows: Rows of the group.
        limit: Share of the iteration that the group may take on any worker; None where nothing is stated.
        strength: Least excess in standard errors.
        ratio: Least excess relative to the reference.
    """
    if not rows or not _worth_reading(view, rows, limit):
        return
    time_WI = view.fleet.series(rows)
    # without the jitter of sampling, for recomputing iterations
    kept_W = 1 - _sampling_error(view, rows) ** 2 * time_WI.shape[1] / np.maximum(time_WI.var(axis=1), 1e-9)
    mean_W1 = time_WI.mean(axis=1, keepdims=True)
    steady_WI = mean_W1 + np.clip(kept_W, 0.0, 1.0)[:, None] * (time_WI - mean_W1)
    for source in SOURCES:
        excess = expected(view, rows, time_WI, source, limit)
        if excess is None:
            continue
        least = view.settings.min_gain
        if source == "expectation" and view.fleet.has_accelerator:
            least = view.settings.beta_gate  # the paper's 1 %
        sure = SURE if source == "expectation" else strength
        ratio_W = 0.0 if source == "expectation" else _ratio_of(view, rows, ratio)
        over_W = stands_out(view, excess, ratio_W, sure, least)
        if not over_W.any():
            continue
        if source == "peers":  # the workers for which their peers wait
            agreement_W = view.deficit_us / np.maximum(np.nan_to_num(excess.excess_us), 1e-9)
            late_W = over_W & (agreement_W >= LEAST_AGREEMENT * view.strictness)
            if late_W.any():
                yield outliers_of("peers", excess, steady_WI, late_W, agreement_W)
        else:
            yield from _most(view, steady_WI, excess, over_W, source)


def _worth_reading(view: View, rows: Sequence[int], limit: float | None) -> bool:
    """Return True if means alone show enough excess: a look before any series is decoded."""
    total_W = view.fleet.critical_us[list(rows)].sum(axis=0)
    floor = view.settings.min_gain * view.iteration_us
    before_W = np.nan_to_num(view.suspects.before_us[list(rows)].sum(axis=0), nan=np.inf)
    beyond = limit is not None and float(total_W.max()) > limit * view.iteration_us
    return float(np.ptp(total_W)) >= floor or bool((total_W - before_W >= floor).any()) or beyond


def stands_out(view: View, excess: Excess, ratio: float | Floats, strength: float, least: float) -> Flags:
    """Mark workers that surely exceed the reference, by enough of it and of the iteration. bool [W].

    Args:
        view: The window.
        excess: Excess of the workers.
        ratio: Least excess relative to the reference. float64 [W], or one for all.
        strength: Least excess in standard errors.
        least: Least excess as a share of the iteration, 0-1.
    """
    amount_W = np.nan_to_num(excess.excess_us, nan=-1.0)
    least_us = least * view.iteration_us
    floor_W = np.maximum(least_us, ratio * view.strictness * np.nan_to_num(excess.reference_us))
    return np.asarray((amount_W >= floor_W) & (excess.strength >= strength * view.strictness), dtype=np.bool_)


def _ratio_of(view: View, rows: Sequence[int], highest: float) -> Floats:
    """Return the least excess relative to the reference: less for training's Python the less of a core it uses. [W]."""
    fleet, keys = view.fleet, [view.fleet.keys[row] for row in rows]
    if any(key.kind != "python" or key.thread != "training" or key.phase == "input" for key in keys):
        return np.full(view.workers, highest)
    samples_RW = fleet.samples[list(rows)]
    time_RW = np.where(samples_RW > 0, fleet.critical_us[list(rows)], 0.0)
    used_W = (np.nan_to_num(fleet.pattern[list(rows), :, 1]) * time_RW).sum(axis=0)
    use_W = np.minimum(used_W / np.maximum(time_RW.sum(axis=0), 1e-9), 1.0)
    is_known_W = (samples_RW.sum(axis=0) >= FEWEST_SAMPLES) & (held_share(fleet) <= HELD)
    lowest = min(_RATIO_WITHOUT_CORE, highest)
    return np.asarray(lowest + (highest - lowest) * np.where(is_known_W, use_W, 1.0))


def _most(view: View, steady_WI: Floats, excess: Excess, over_W: Flags, source: Reference) -> Iterator[Block]:
    """Yield most workers together; or each role that exceeds as a whole while other roles wait for it."""
    waits_W = view.wait_rise_us if source == "baseline" else view.wait_us
    late_W, agreement = late_together(excess, over_W, waits_W)
    if late_W.any():
        yield outliers_of(source, excess, steady_WI, late_W, agreement)
    elif source == "baseline":
        for role_W, agreement_W in late_roles(view, excess, over_W):
            yield outliers_of(source, excess, steady_WI, role_W, agreement_W)


def late_roles(view: View, excess: Excess, over_W: Flags) -> Iterator[tuple[Flags, Floats]]:
    """Yield each role that is late as a whole, while most workers of other roles are not.

    Others wait for it if its workers' waiting has risen less since the baseline window than that of other roles.

    Yields:
        Its late workers, bool [W]; and the share of their excess that others wait for, float64 [W].
    """
    rise_W = view.wait_rise_us
    for role in np.unique(view.fleet.roles[over_W]):
        own_W = view.fleet.roles == role
        others = rise_W[~own_W & ~np.isnan(rise_W)]
        if others.size and over_W[~own_W].mean() < 1 - MOST:
            longer_W = np.nan_to_num(np.median(others) - rise_W)
            agreement_W = longer_W / np.maximum(np.nan_to_num(excess.excess_us), 1e-9)
            late_W = own_W & over_W & (agreement_W >= LEAST_AGREEMENT)
            if late_W[own_W].mean() >= MOST:
                yield late_W, agreement_W


def late_together(excess: Excess, over_W: Flags, waits_W: Floats) -> tuple[Flags, float | None]:
    """Find most workers late, those included that are about as late, noise or not.

    Args:
        excess: Of all workers.
        over_W: Workers with a clear excess. bool [W].
        waits_W: Waiting, or by how much it has risen. float64 [W].

    Returns:
        The late, bool [W]; and the share of their excess that all others wait for, None where they are the job.
    """
    amount_W, none_W = np.nan_to_num(excess.excess_us), np.zeros_like(over_W)
    if 2 * over_W.sum() <= over_W.size:
        return none_W, None
    late_W = np.asarray(over_W | (amount_W >= float(np.median(amount_W[over_W])) / 2), dtype=np.bool_)
    longer_W = float(np.nan_to_num(waits_W)[~late_W].min(initial=np.inf)) - np.nan_to_num(waits_W)
    agreement = float((longer_W / np.maximum(amount_W, 1e-9))[late_W].min())
    if agreement >= LEAST_AGREEMENT and not late_W.all():
        return late_W, min(agreement, 1.0)
    return (late_W if over_W.mean() >= MOST else none_W), None


def outliers_of(
    source: Reference, excess: Excess, time_WI: Floats, late_W: Flags, agreement_W: Floats | float | None
) -> Block:
    """Put together the excess of some workers, as a block whose cell, rows and function are not known yet.

    Args:
        source: What it exceeds.
        excess: Of all workers in the group.
        time_WI: Their time in it.
        late_W: The late, at least one. bool [W].
        agreement_W: Share of each one's excess that others wait for; None where everybody is meant.
    """
    agreement = None if agreement_W is None else np.clip(np.broadcast_to(agreement_W, late_W.shape)[late_W], 0.0, 1.0)
    return Block(
        cell="python",
        workers=tuple(np.flatnonzero(late_W).tolist()),
        scope="all" if agreement is None else "some",
        reference=source,
        removed_us=time_above(time_WI, excess.reference_us, late_W),
        mean_us=float(excess.mean_us[late_W].mean()),
        reference_us=float(excess.reference_us[late_W].mean()),
        strength=float(np.median(excess.strength[late_W])),
        agreement=None if agreement is None else float(agreement.min()),
    )


def time_above(time_WI: Floats, reference_W: Floats, late_W: Flags) -> Floats:
    """Return the excess of the late in each iteration, 0 for everybody else. float64 [W, I].

    Sampled times jump. Cutting them off at the reference makes their mean too large, so it is scaled back.
    """
    above_WI = np.maximum(time_WI - np.nan_to_num(reference_W)[:, None], 0.0)
    above_WI[~late_W] = 0.0
    mean_W = above_WI.mean(axis=1)
    wanted_W = np.maximum(time_WI.mean(axis=1) - np.nan_to_num(reference_W), 0.0)
    scale_W = np.divide(wanted_W, mean_W, out=np.zeros_like(mean_W), where=mean_W > 0)
    return np.asarray(above_WI * scale_W[:, None])
