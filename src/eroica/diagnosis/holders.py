"""Find code that is long enough to hold a slowdown that nothing accounts for: the likeliest hypotheses, then.

Without a window of the job at its best pace, nobody knows what takes longer than then. But the pace tells by how much
iterations have grown, and code that takes less than half of that is not what has grown.
"""

from __future__ import annotations

import numpy as np

from eroica.diagnosis.account import is_own_time
from eroica.diagnosis.frames import split_frame
from eroica.diagnosis.gains import HALF
from eroica.diagnosis.limits import LISTED, LOOP
from eroica.diagnosis.new_code import inclusive_times
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.model.verdict import UNMEASURED, Hypothesis


def find_holders(view: View) -> tuple[Hypothesis, ...]:
    """Find the most specific of the user's functions that take at least half of what iterations have grown by, once.

    Of functions that call each other the one with the least time is offered; of the others the shortest first. Empty
    where iterations have not grown, or no stacks tell.
    """
    if view.holders is not None:
        return view.holders
    view.holders = ()
    best_us, fleet, past = view.stated_baseline_us or view.baseline_us, view.fleet, view.suspects.baseline
    if not (view.is_slow and view.sees_callers and best_us and view.iteration_us > best_us):
        return ()
    if past is not None and past.mean_iteration_us < best_us + HALF * (view.iteration_us - best_us):
        return ()  # it shows how long everything took, and nothing of it takes longer
    rows = [at for at, key in enumerate(fleet.keys) if key.kind == "python" and key.thread == "training"]
    whole_us = fleet.total_us[rows].sum(axis=0).max()
    times = inclusive_times(fleet, is_own_time)
    least_us = HALF * (view.iteration_us - best_us)
    long = {frame: time_W for frame, time_W in times.items() if least_us <= time_W.max() <= LOOP * whole_us}
    found: list[Hypothesis] = []
    while long and len(found) < LISTED:
        frame = min(long, key=lambda one: (round(float(long[one].max())), -len(one), one))
        most_us, members = float(long[frame].max()), np.flatnonzero(long[frame] >= HALF * long[frame].max())
        found.append(
            Hypothesis(
                cause="unknown",
                function=split_frame(frame).label,
                workers=tuple(fleet.ranks[at] for at in members),
                scope="all" if members.size == view.workers else "some",
                gain=None,
                decision=UNMEASURED,
                met=(f"takes {format_ms(most_us)} of each iteration, enough to hold the slowdown",),
                unknown=("how long it takes in a healthy job (eroica diff)",),
            )
        )
        kin = {other for at in rows if frame in fleet.keys[at].stack for other in fleet.keys[at].stack}
        long = {other: time_W for other, time_W in long.items() if other not in kin}
    view.holders = tuple(found)
    return view.holders
