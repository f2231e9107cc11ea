"""The same work in smaller pieces: operators that run more often than when the job was healthy, each more briefly.

A chunk size that was lowered, a loop over samples instead of a batch, a vectorized function that fell back: each piece
costs its call, and Python between the calls. Many operators of everybody's change at once, so no single one stands out;
stacks tell under which function they are called.

Array suffixes: W workers.
"""

from __future__ import annotations

import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.growth import SHORTER
from eroica.diagnosis.lateness import JOB_WIDE, LEAST_STRENGTH
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.speed import operators, speed_against_baseline
from eroica.diagnosis.under_operators import find_called_focus, past_of, rows_under, whole_us
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import mean_error

#: So many times as often (and each in at most the share of the time from which on it is another one).
_MORE_OFTEN = 1.5
#: Share of what iterations have grown by that workers must be busy longer in operators.
_IN_OPERATORS = 0.3
_NEXT_STEP = (
    "Find what cuts the work up (a chunk or micro-batch size, a loop over samples, a fallback from a fused or "
    "vectorized function) and put it back; fewer and larger operators cost less."
)


def find_smaller_pieces(view: View) -> list[Candidate]:
    """Accuse the function under which all workers' operators are more and shorter, where that has made a job slow."""
    past = past_of(view, whole_us)
    if past is None or view.is_trace or not view.is_slow or not _are_smaller(view):
        return []
    grown_us = view.iteration_us - past.fleet.mean_iteration_us
    rows = operators(view.fleet)
    busier_W = view.fleet.busy_us.mean(axis=1) - view.busy_before().mean(axis=1)
    in_operators_W = (view.fleet.series(rows).mean(axis=1)) - view.before(rows).mean(axis=1)
    enough = busier_W.min() >= MOST * grown_us and in_operators_W.min() >= _IN_OPERATORS * grown_us
    focus = find_called_focus(view, range(view.workers), past) if grown_us > 0 and enough else None
    if focus is None:
        return []
    error_us = float(mean_error(view.fleet.busy_us).max())
    strength = float(busier_W.min()) / max(error_us, 1e-9)
    if strength < LEAST_STRENGTH * view.strictness:
        return []
    under = rows_under(view.fleet, focus)
    now_us, then_us = float(whole_us(view.fleet, under).mean()), float(past.under(focus).mean())
    return [_candidate(view, focus, (now_us, then_us), float(busier_W.min()), strength)]


def _are_smaller(view: View) -> bool:
    """True if operators of (nearly) all workers run more often, and take less each.

    Operators of backward must do so, too: many short ones of forward alone are more to generate, or to evaluate.
    """
    change = view.speed_change
    smaller_W = (np.nan_to_num(change.count_ratio) >= _MORE_OFTEN) & (np.nan_to_num(change.factor, nan=1.0) <= SHORTER)
    backward_W = speed_against_baseline(view.suspects, frozenset({"backward"})).count_ratio
    smaller_W &= np.isnan(backward_W) | (np.nan_to_num(backward_W) >= _MORE_OFTEN)
    return bool(smaller_W.mean() >= JOB_WIDE)


def _candidate(view: View, focus: Focus, under_us: tuple[float, float], longer_us: float, strength: float) -> Candidate:
    change, (now_us, then_us) = view.speed_change, under_us
    often, each = float(np.nanmedian(change.count_ratio)), float(np.nanmedian(change.factor))
    all_of_them = f"All {view.workers} workers run" if view.workers > 1 else "The worker runs"
    return Candidate(
        cause="python-on-critical-path",
        scope="all",
        workers=tuple(range(view.workers)),
        functions=focus.functions,
        focus=focus,
        kind="python",
        removed_us=np.full_like(view.fleet.iteration_us, longer_us),
        mean_us=now_us,
        reference_us=then_us,
        reference="baseline",
        strength=min(strength, 99.0),
        coverage=focus.share,
        corroboration=LEAST_STRENGTH,  # executions are counted: that they are more is no noise, however few iterations
        least_gain=view.settings.min_gain,
        evidence=(
            f"With all that it calls, {focus.label} takes {format_ms(now_us)} of each iteration, "
            f"{format_ms(then_us)} in the {view.past_window}.",
            f"Workers are busy {format_ms(longer_us)} longer in each iteration than then.",
        ),
        sentence=(
            f"{all_of_them} operators {often:.1f} times as often as {view.back_then}, each {each:.1f} times as "
            f"long: the same work in smaller pieces, mainly under {focus.label}, which takes {format_ms(now_us)} of "
            f"each {format_ms(view.iteration_us)} iteration instead of {format_ms(then_us)}."
        ),
        next_step=_NEXT_STEP,
    )
