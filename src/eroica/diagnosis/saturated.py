"""Loader processes that never wait for work: no iteration can be shorter than what they need for a batch.

A window makes iterations a little longer, and workers hardly wait in it for a loader that limits the job by less than
that. The loader processes tell it all the same. They worked a part of the time in the baseline window and work all of
it now, and a batch takes them longer than an iteration did, or than one may. This rule is asked only where nothing but
loading explains a slow job.

Array suffixes: W workers.
"""

from __future__ import annotations

import msgspec
import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.lateness import JOB_WIDE, LEAST_STRENGTH
from eroica.diagnosis.loader_children import MOSTLY_BUSY, batch_us, busy_share, frame_in_children
from eroica.diagnosis.reading import describe, doing, python_cause
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.model.shares import percent
from eroica.model.window import SLOWER

#: A batch must take them this much longer than when the job was healthy.
_GROWN = 1.25
#: And as long as this share of an iteration outside the window: there, they work all of it.
_LIMITS = 0.95
#: What follows from what processes do, not from the window run again.
_DOUBT = 0.85


class _Pace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Time of an iteration, and the time that the loaders need for its batch.

    Attributes:
        best_us: An iteration at the job's best, or as somebody expects it.
        current_us: An iteration outside the window.
        busy: Share of the time in which the loaders work, mean over the accused.
        batch_us: Time that the loaders need for a batch, same mean.
        before_us: That time in the baseline window; None without one.
    """

    best_us: float
    current_us: float
    busy: float
    batch_us: float
    before_us: float | None

    @property
    def gain(self) -> float:
        return 1 - self.best_us / self.current_us


def find_saturated_loading(view: View) -> list[Candidate]:
    """Accuse workers whose loader processes set the pace of a job that has got slower."""
    window, past = view.context.window, view.suspects.baseline
    best_us, current_us = view.stated_baseline_us or 0.0, (window.current_iteration_s or 0.0) * 1e6
    if window.purpose == "expected":
        best_us = view.settings.expected_iteration_s * 1e6
    told = past is not None or window.purpose in ("expected", *SLOWER)
    if view.is_trace or not view.is_slow or not told or not 0 < best_us < current_us:
        return []
    busy_W, batch_W, before_W = busy_share(view.fleet), batch_us(view.fleet), view.then(batch_us)
    late_W = busy_W >= MOSTLY_BUSY
    if past is not None:  # whoever was not there then is compared with nothing
        late_W &= batch_W >= _GROWN * before_W
    late_W &= (batch_W >= best_us * (1 + view.settings.slowdown)) & (batch_W >= _LIMITS * current_us)
    members = np.flatnonzero(late_W)
    inside = frame_in_children(view, members.tolist(), "baseline") if members.size else None
    if inside is None:
        return []
    pace = _Pace(
        best_us=best_us,
        current_us=current_us,
        busy=float(busy_W[members].mean()),
        batch_us=float(batch_W[members].mean()),
        before_us=float(before_W[members].mean()) if past is not None else None,
    )
    return [_candidate(view, tuple(members.tolist()), inside, pace)]


def _candidate(view: View, members: tuple[int, ...], inside: Focus, pace: _Pace) -> Candidate:
    everybody = len(members) >= JOB_WIDE * view.workers
    whose = f"all {view.workers} workers" if everybody else name_workers([view.fleet.ranks[at] for at in members])
    batch, best, now = (format_ms(each) for each in (pace.batch_us, pace.best_us, pace.current_us))
    is_stated = view.context.window.purpose == "expected"
    then = "" if pace.before_us is None else f", {format_ms(pace.before_us)} {view.back_then}"
    usual = "should take" if is_stated and pace.before_us is None else "took at best"
    done = doing(view, inside.functions, members)
    removed_WI = np.zeros_like(view.fleet.iteration_us)
    removed_WI[list(members)] = pace.current_us - pace.best_us
    return Candidate(
        cause=python_cause(done, is_input=True),
        scope="all" if everybody else "some",
        workers=members,
        functions=inside.functions,
        focus=inside,
        kind="python",
        removed_us=removed_WI,
        mean_us=pace.current_us,
        reference_us=pace.best_us,
        reference="expectation" if is_stated and pace.before_us is None else "slowdown",
        strength=3 * LEAST_STRENGTH,
        coverage=inside.share,
        least_gain=view.settings.min_gain,
        evidence=(
            f"The loader processes of {whose} work {percent(pace.busy)} of the time, most of it in {inside.label}: a "
            f"batch takes them {batch}{then}.",
            f"Iterations {usual} {best} and take {now} now; none can take less than its batch.",
            *describe(done),
        ),
        gain=pace.gain,
        sentence=(
            f"The loader processes of {whose} need {batch} for a batch, most of it in {inside.label}{then}: iterations "
            f"take {now} instead of {best}."
        ),
        doubt=_DOUBT,
    )
