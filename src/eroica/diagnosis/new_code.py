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
#: Of what it takes now, it took at most this share then.
_HARDLY = 0.1


def new_function(view: View, least_us: float) -> str:
    """Name the frame that holds so much of an iteration on all workers, and hardly any before; "" without one."""
    past = None if view.is_trace else view.suspects.baseline
    return "" if past is None else _largest(inclusive_times(view.fleet), inclusive_times(past), least_us)


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
    much = [one for one, time in least.items() if time >= least_us]
    new = [one for one in much if one not in there or float(there[one].mean()) <= _HARDLY * least[one]]
    return split_frame(max(new, key=lambda one: (round(least[one]), -len(one), one))).label if new else ""
