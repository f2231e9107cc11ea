"""Loader processes that never wait for work: no iteration can be shorter than what they need for a batch.

A window makes iterations a little longer, and a loader that limits the job by less than that is hardly waited for while
anybody looks. What its processes do tells it all the same: they worked a part of the time when the job was healthy, and
work all of it now, and a batch takes them longer than an iteration did. Asked only where nothing else explains a job
that has got slower.

Array suffixes: W workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.lateness import JOB_WIDE, LEAST_STRENGTH
from eroica.diagnosis.loading import frame_in_children, is_idle_stack
from eroica.diagnosis.reading import describe, doing, python_cause
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.fleet import Fleet
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: Who limits the job works most of the time in a window, too, in which there is more room to wait.
_MOSTLY_BUSY = 0.75
#: A batch must take them this much longer than when the job was healthy.
_GROWN = 1.25
#: And as long as this share of an iteration outside the window: there, they work all of it.
_LIMITS = 0.95
#: What follows from what processes do, not from the window run again.
_DOUBT = 0.85


def find_saturated_loading(view: View) -> list[Candidate]:
    """Workers whose loader processes set the pace of a job that has got slower."""
    window = view.context.window
    if view.is_trace or not view.is_slow or view.suspects.baseline is None or not view.slowdown_us:
        return []
    current_us, best_us = float(window.current_iteration_s or 0) * 1e6, float(view.stated_baseline_us or 0)
    busy_W, before_us = _busy_share(view.fleet), view.then(_batch_us)
    batch_us = _batch_us(view.fleet)
    late_W = (busy_W >= _MOSTLY_BUSY) & (batch_us >= _GROWN * before_us)
    late_W &= (batch_us >= best_us * (1 + view.settings.slowdown)) & (batch_us >= _LIMITS * current_us)
    members = tuple(np.flatnonzero(late_W).tolist())
    inside = frame_in_children(view, members, "baseline") if members else None
    if inside is None:
        return []
    everybody = len(members) >= JOB_WIDE * view.workers
    done = doing(view, inside.functions, members)
    removed_WI = np.zeros_like(view.fleet.iteration_us)
    removed_WI[list(members)] = view.slowdown_us
    batch, before = (format_ms(float(each_W[list(members)].mean())) for each_W in (batch_us, before_us))
    whose = f"all {view.workers} workers" if everybody else name_workers([view.fleet.ranks[at] for at in members])
    found = Candidate(
        cause=python_cause(done, is_input=True),
        scope="all" if everybody else "some",
        workers=members,
        functions=inside.functions,
        focus=inside,
        kind="python",
        removed_us=removed_WI,
        mean_us=current_us,
        reference_us=best_us,
        reference="slowdown",
        strength=3 * LEAST_STRENGTH,
        coverage=inside.share,
        agreement=None,
        least_gain=view.settings.min_gain,
        evidence=(
            f"The loader processes of {whose} work {percent(float(busy_W[list(members)].mean()))} of the time, most of "
            f"it in {inside.label}: a batch takes them {batch}, {before} when the job was healthy.",
            f"Iterations took {format_ms(best_us)} at best and take {format_ms(current_us)} now; none can take less "
            "than its batch.",
            *describe(done),
        ),
        gain=view.slowdown_us / current_us,
        sentence=(
            f"The loader processes of {whose} need {batch} for a batch, most of it in {inside.label}, against {before} "
            f"when the job was healthy: iterations take {format_ms(current_us)} instead of {format_ms(best_us)}."
        ),
        doubt=_DOUBT,
    )
    return [found]


def _busy_share(fleet: Fleet) -> Floats:
    """Share of the time in which a worker's loader processes that were sampled work on data; NaN without any. [W]."""
    rows = [at for at, key in enumerate(fleet.keys) if key.thread == "loader" and key.phase == "input"]
    busy = [row for row in rows if not is_idle_stack(fleet.keys[row].stack)]
    all_W, busy_W = fleet.total_us[rows].sum(axis=0), fleet.total_us[busy].sum(axis=0)
    return np.asarray(np.divide(busy_W, all_W, out=np.full(all_W.shape, np.nan), where=all_W > 0))


def _batch_us(fleet: Fleet) -> Floats:
    """Time that all of a worker's loader processes together need for a batch; NaN without any. float64 [W]."""
    return np.asarray(_busy_share(fleet) * fleet.iteration_us.mean(axis=1))
