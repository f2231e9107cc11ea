"""Find code that is long enough to hold a slowdown that nothing accounts for: the likeliest hypotheses, then.

The pace tells by how much iterations have grown, and code that grew by less than half of that is not what has grown.
Without a window of the job at its best pace nobody knows what it took then: all that it takes now may have come.
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
    """Find the most specific of the user's functions that hold at least half of what iterations have grown by, once.

    Of functions that call each other the one with the least time is offered, the innermost of equals; of the others
    the shortest first. Empty where iterations have not grown, or no stacks tell.
    """
    if view.holders is not None:
        return view.holders
    view.holders = ()
    best_us, fleet, past = view.stated_baseline_us or view.baseline_us, view.fleet, view.suspects.baseline
    if not (view.sees_callers and best_us and view.iteration_us > best_us):
        return ()
    least_us, then = HALF * (view.iteration_us - best_us), {}
    if past is not None and past.mean_iteration_us < best_us + least_us:  # it shows how long everything took
        then = inclusive_times(past, is_own_time)
    rows = [at for at, key in enumerate(fleet.keys) if key.kind == "python" and key.thread == "training"]
    depth = {frame: at for row in rows for at, frame in enumerate(fleet.keys[row].stack)}
    times, most_us = inclusive_times(fleet, is_own_time), LOOP * fleet.total_us[rows].sum(axis=0).max()
    long = {one: us_W - np.mean(then.get(one, 0.0)) for one, us_W in times.items()}
    more, settles = "of each iteration, enough to hold the slowdown", "how long it takes in a healthy job (eroica diff)"
    if then:  # backward has no stacks of its own
        least_us = max(HALF * max(map(np.max, long.values()), default=0.0), view.settings.min_gain * view.iteration_us)
        more, settles = f"longer than in the {view.past_window}", "whether it was given more to do, or is slower"
    long = {one: us_W for one, us_W in long.items() if us_W.max() >= least_us and times[one].max() <= most_us}
    found: list[Hypothesis] = []
    while long and len(found) < LISTED:
        frame = min(long, key=lambda one: (round(float(times[one].max())), -depth[one], one))
        members = np.flatnonzero(long[frame] >= HALF * long[frame].max())
        found.append(
            Hypothesis(
                cause="unknown",
                function=split_frame(frame).label,
                workers=tuple(fleet.ranks[at] for at in members),
                scope="all" if members.size == view.workers else "some",
                gain=None,
                decision=UNMEASURED,
                met=(f"takes {format_ms(float(long[frame].max()))} {more}",),
                unknown=(settles,),
            )
        )
        kin = {other for at in rows if frame in fleet.keys[at].stack for other in fleet.keys[at].stack}
        long = {other: time_W for other, time_W in long.items() if other not in kin}
    view.holders = tuple(found)
    return view.holders
