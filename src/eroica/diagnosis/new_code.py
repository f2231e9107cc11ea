"""Code that runs now and did not in the baseline window: how a change of the job's code looks from outside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.frames import is_own_frame, split_frame
from eroica.diagnosis.view import View
from eroica.localize.fleet import Fleet
from eroica.model.pattern import FunctionKey

Floats = NDArray[np.float64]
#: Share of the iteration that code must hold, with all that it calls.
_MUCH = 0.3
#: Of what it takes now, it took at most this share then.
_HARDLY = 0.1


def describe_new_code(view: View) -> str:
    """Describe new code; "" where no large part of the iteration is new on all workers."""
    past = view.suspects.baseline
    if past is None or view.is_trace:
        return ""
    now, then = inclusive_times(view.fleet), inclusive_times(past)
    new = _largest(now, then, _MUCH * view.iteration_us)
    gone = _largest(then, now, _MUCH * past.mean_iteration_us)
    if not new:
        return ""
    if gone:
        return f"All workers run {new} now, where they ran {gone} in the {view.past_window}: compare the two."
    what = "look what it does, and why it began"
    return f"All workers run {new} now, which they did not in the {view.past_window}: {what}."


def new_function(view: View, least_us: float) -> str:
    """Name the frame that holds so much of an iteration on all workers, and hardly any before; "" without one."""
    past = view.suspects.baseline
    return (
        "" if past is None or view.is_trace else _largest(inclusive_times(view.fleet), inclusive_times(past), least_us)
    )


def inclusive_times(fleet: Fleet, counts: Callable[[FunctionKey], bool] = bool) -> dict[str, Floats]:
    """Return the time under each of the user's frames on the training thread, us per iteration. float64 [W] each."""
    found: dict[str, Floats] = defaultdict(lambda: np.zeros(len(fleet.ranks)))
    for at, key in enumerate(fleet.keys):
        if key.kind == "python" and key.thread == "training" and counts(key):
            for frame in set(key.stack):
                if is_own_frame(frame):
                    found[frame] += fleet.total_us[at]
    return found


def _largest(here: dict[str, Floats], there: dict[str, Floats], least_us: float) -> str:
    """Name the frame that holds much of an iteration on every worker, and hardly any of one in the other window."""
    least = {frame: float(time_W.min()) for frame, time_W in here.items()}
    much = {
        frame: time
        for frame, time in least.items()
        if time >= least_us and (frame not in there or float(there[frame].mean()) <= _HARDLY * time)
    }
    if not much:
        return ""
    return split_frame(max(much, key=lambda one: (round(much[one]), -len(one), one))).label
