"""One Python function that makes a pipeline stage long: no structure of the model, though it has always been so.

A stage of its own has no peers, and a baseline window taken with the function in place shows nothing new. But how a
model is cut decides how many operators a stage runs, not how long its Python takes. So a function of the user's that
holds most of what the stage takes beyond all others is named, with a doubt, if these wait. But what was there in the
baseline window has not made a job slower since.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, find_focus
from eroica.diagnosis.lateness import LEAST_STRENGTH, Lateness, measure
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.pre_existing import is_older
from eroica.diagnosis.python_code import accuse_python, python_rows
from eroica.diagnosis.view import View
from eroica.localize.excess import standard_error

#: The least share of the iteration that the function must take.
_LEAST_SHARE = 0.2
#: Without the function the stage must still take this share of what the others do: else it is what the stage is for.
_LEAST_LEFT = 0.5


def _was_there(view: View, focus: Focus, own_W: NDArray[np.bool_], now_us: float) -> bool:
    """True if the function took most of its time in the baseline window already."""
    then_RW = np.nan_to_num(view.suspects.before_us[list(focus.functions)])
    return is_older(view, now_us, float(then_RW.sum(axis=0)[own_W].mean()))


def find_code_of_stage(view: View, own_W: NDArray[np.bool_], over_us: float) -> Candidate | None:
    """Accuse the function of the user's code that makes a stage long; None without one.

    Args:
        view: The window.
        own_W: Workers that run the stage. bool [W].
        over_us: Time of the stage beyond the longest other one.
    """
    rows = python_rows(view)
    members = np.flatnonzero(own_W)
    if not rows or not members.size:
        return None
    time_R = view.fleet.critical_us[rows][:, own_W].mean(axis=1)
    elsewhere_R = view.fleet.critical_us[rows][:, ~own_W].mean(axis=1)
    focus = find_focus(view.fleet.keys, rows, np.maximum(time_R - elsewhere_R, 0.0), time_R)
    if focus is None or not (focus.is_own and focus.is_specific):
        return None
    spent = measure(view, focus.functions)
    mean_W = spent.time_us.mean(axis=1)
    reference_us = float(mean_W[~own_W].mean())
    excess_W = mean_W[own_W] - reference_us
    strength = float(np.median(excess_W / np.maximum(standard_error(spent.time_us[own_W]), 1e-9)))
    least = max(MOST * over_us, _LEAST_SHARE * view.iteration_us)
    if excess_W.min() < least or strength < LEAST_STRENGTH:
        return None
    excess_us, busy_us = float(excess_W.mean()), float(view.fleet.busy_us[own_W].mean())
    is_all_there_is = busy_us - excess_us < _LEAST_LEFT * (busy_us - over_us)
    if is_all_there_is or _was_there(view, focus, own_W, excess_us):
        return None
    removed_WI = np.zeros_like(spent.steady_us)
    removed_WI[own_W] = np.maximum(spent.steady_us[own_W] - reference_us, 0.0)
    waited_us = float(view.wait_us[~own_W].mean() - view.wait_us[own_W].mean())
    late = Lateness(
        reference="stages",
        workers=tuple(int(member) for member in members),
        removed_us=removed_WI,
        mean_us=float(mean_W[own_W].mean()),
        reference_us=reference_us,
        strength=strength,
        agreement=float(np.clip(waited_us / max(excess_us, 1e-9), 0.0, 1.0)),
    )
    return accuse_python(view, focus.functions, focus, late)
