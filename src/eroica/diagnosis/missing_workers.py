"""Find waiting for workers that did not report: nobody else is accused of what may be theirs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.frames import MOST
from eroica.diagnosis.selection import LEAST_CHANGE, Cause
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import SURE, mean_error
from eroica.model.shares import percent

#: What would tell.
ALL_OF_THEM = (
    "all of them with Eroica, and let their hosts reach the collector; if some step no optimizer, call eroica.step() "
    "once per iteration on all of them"
)
#: Online, if all workers that reported wait this share of the iteration, one that did not report is late.
_ALL_WAIT = 0.3


class Absence(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting of all workers that reported, for workers that did not or for the transfer: nothing tells which.

    Attributes:
        us: Waiting per iteration; or its excess over the baseline window, see `is_longer`.
        is_longer: `us` is the excess over the baseline window.
        is_most: The waiting is enough to be the reason by itself.
    """

    us: float
    is_longer: bool
    is_most: bool


def common_wait(wait_WI: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an iteration's collective time that even the last to arrive spends. float64 [1, I]."""
    return np.asarray(wait_WI.min(axis=0)[None])


def common_share(view: View) -> float:
    """Return the share of the iteration that even the worker that waits least spends in collectives."""
    return float(common_wait(view.fleet.wait_us).mean()) / max(view.iteration_us, 1e-9)


def find_absence(view: View) -> Absence | None:
    """Find the time that all wait in collectives for a worker that did not report; None where that is too little."""
    if not view.context.missing:
        return None
    if view.is_trace:
        worst = float(_for_nobody(view).max())
        is_most = worst >= view.settings.min_gain
        return Absence(us=worst * view.iteration_us, is_longer=False, is_most=True) if is_most else None
    now_I, past = common_wait(view.fleet.wait_us), view.suspects.baseline
    those = [] if past is None else [at for at, rank in enumerate(past.ranks) if rank in view.fleet.known_ranks]
    if past is not None and those:
        then_I = common_wait(past.wait_us[those])  # of fewer workers the least wait is longer
        longer_us = float(now_I.mean() - then_I.mean())
        error_us = float(np.hypot(mean_error(now_I)[0], mean_error(then_I)[0]))
        least = view.settings.min_gain if view.is_slow or view.fleet.has_accelerator else LEAST_CHANGE
        if longer_us >= max(least * view.iteration_us, SURE * error_us):
            is_most = longer_us >= MOST * (view.iteration_us - past.mean_iteration_us) > 0
            return Absence(us=longer_us, is_longer=True, is_most=is_most)
    share = common_share(view)
    if share < _ALL_WAIT:
        return None
    # as long as when all had reported it is what they always wait
    is_known = past is not None and bool(those) and set(view.context.missing) <= set(past.ranks)
    return Absence(us=share * view.iteration_us, is_longer=False, is_most=not is_known)


def hides(view: View, absence: Absence | None, causes: Sequence[Cause]) -> bool:
    """True if the wait for workers that did not report may cost more than all causes, which then explain nothing.

    Where that wait is no longer than in the baseline window, or there is none, it stands beside causes as a note. A
    cause of kind "collective" is that wait itself.
    """
    if absence is None or not absence.is_most:
        return False
    if any(cause.block.kind == "collective" for cause in causes):
        return False
    gained_us = sum(cause.gain for cause in causes) * view.iteration_us
    return not causes or (absence.is_longer and absence.us > gained_us)


def describe_absence(view: View, absence: Absence) -> str:
    """Say that all may wait for workers that did not report, and what would settle it."""
    ranks = name_workers(view.context.missing)
    if view.is_trace:
        worst = int(_for_nobody(view).argmax())
        who, share = name_workers([view.fleet.ranks[worst]], capital=True), f"{percent(_for_nobody(view)[worst])}"
        is_there = set(view.context.missing) <= set(view.context.left_out)
        why = "left out of the comparison" if is_there else "of which there is no trace"
        return (
            f"{who} spends {share} of the iteration in collectives, and for none of the recorded workers: that may be "
            f"the transfer, or {ranks}, {why}. Traces of all ranks would tell."
        )
    late = "it is" if len(view.context.missing) == 1 else "they are"
    return (
        f"{_wait(view, absence)}; {ranks} did not report, and whether {late} late or the transfer is slow cannot be "
        f"told. Start {ALL_OF_THEM}."
    )


def note_absence(view: View, absence: Absence) -> str:
    """Note that wait beside causes that cost more, or as much as can be told."""
    return f"{_wait(view, absence)}, which may be for {name_workers(view.context.missing)}: not reported."


def _wait(view: View, absence: Absence) -> str:
    longer = f" longer than {view.back_then}" if absence.is_longer else ""
    each = f"{format_ms(absence.us)} of each {view.now_text} iteration"
    return f"All workers that reported wait in collectives, {each}{longer}"


def _for_nobody(view: View) -> NDArray[np.float64]:
    """Return the share of the iteration in collectives that a worker waits for none of the recorded. float64 [W]."""
    waited_W = view.wait_us - view.suspects.arrivals.waited_us.mean(axis=1)
    return np.asarray(waited_W / max(view.iteration_us, 1e-9))
