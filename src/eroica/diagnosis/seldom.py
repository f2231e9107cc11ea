"""Find what the long iterations for which a window was opened spend their time in, and on which workers.

Workers noticed that every so many iterations one takes much longer than it did in the past (`agent.seldom`). Such
iterations are left out of what is judged elsewhere, and one of them in a window says nothing about how often it comes;
here it is known. What they cost is what the workers saw, over many of them.

Array suffixes: W workers, I iterations (all captured ones that everybody has), R rows.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.blocking import CAUSES
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, find_focus
from eroica.diagnosis.lateness import LEAST_AGREEMENT
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.new_code import new_function
from eroica.diagnosis.occasions import Occasions, agreement_of, candidate_of, runs_of, whose
from eroica.diagnosis.reading import describe, doing, python_cause
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.fleet import Fleet
from eroica.model.shares import percent

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: An iteration so many times as long as the usual one is long.
_LONG = 1.5
#: And it takes at least this share of what the workers saw, beyond that.
_PART = 0.5
#: Rows that hold a smaller share of it are not read: at 100,000 workers each takes a while.
_LEAST_ROW = 0.01
#: Share of what long iterations take beyond the usual, in computing, transfers and so on, that is worth a word.
_MOSTLY = 0.5
_LONGER = "Open a longer window (eroica profile --iterations)."
_LOOK = "Look what the job does then, and whether it has grown."


def find_seldom(view: View) -> list[Candidate]:
    """Accuse the Python function that the long iterations spend their time in, on the workers that spend it there."""
    whole, hit_I = view.whole, long_iterations(view)
    if not hit_I.any():
        return []
    above_WI = _above_usual(whole.busy_us, hit_I)
    scope, workers = whose(above_WI[:, hit_I])
    accused = list(workers) or list(range(len(whole.ranks)))
    least_us = _LEAST_ROW * float(above_WI[accused].mean())
    heavy = whole.critical_us[:, accused].mean(axis=1) >= max(least_us, 1e-9)
    rows = [row for row, key in enumerate(whole.keys) if key.kind == "python" and heavy[row]]
    above_R = np.asarray([_above_usual(whole.series([row]), hit_I)[accused].mean() for row in rows])
    time_R = whole.critical_us[rows][:, accused].mean(axis=1)
    focus = find_focus(whole.keys, rows, above_R, time_R) if rows else None
    if focus is None:
        return []
    time_WI = _above_usual(whole.series(focus.functions), hit_I)
    longer_WI = _above_usual(whole.iteration_us, hit_I)
    explained = float(time_WI[accused].sum()) / max(float(longer_WI[accused].sum()), 1e-9)
    found = Occasions(
        fleet=whole,
        rows=focus.functions,
        time_us=time_WI,
        hit=hit_I,
        count=runs_of(hit_I),
        scope=scope,
        workers=workers,
        stated_interval=_interval(view),
    )
    agreement = agreement_of(found)
    if explained < MOST or (agreement is not None and agreement < LEAST_AGREEMENT):
        return []
    return [_candidate(view, found, msgspec.structs.replace(focus, share=min(explained, 1.0)), agreement)]


def long_iterations(view: View) -> Flags:
    """Mark the iterations of a window that it was opened for; none in other windows. bool [I]."""
    duration_I = view.whole.iteration_us.max(axis=0)  # a save before the boundary lengthens one iteration earlier
    if view.context.window.purpose != "seldom" or not duration_I.size:
        return np.zeros(duration_I.size, dtype=np.bool_)
    usual_us = float(np.median(duration_I))
    each_us = view.slowdown_us * _interval(view)
    return np.asarray(duration_I - usual_us >= max((_LONG - 1) * usual_us, _PART * each_us), dtype=np.bool_)


def describe_seldom(view: View) -> str:
    """Say whether a long iteration was captured, and what its time goes into, where no function is named."""
    whole, hit_I = view.whole, long_iterations(view)
    told = f"From time to time an iteration takes much longer ({view.context.window.reason})"
    if not hit_I.any():
        return f"{told}, but none of those lies in this window. {_LONGER}"
    usual, long = (float(whole.iteration_us[:, side].mean()) for side in (~hit_I, hit_I))
    beyond_us = max(long - usual, 1e-9)
    shares = {
        f"in {_collective(whole, hit_I)}, for which all workers wait alike": _common_wait(whole, hit_I),
        "in operators, as that of an evaluation does": _of_kinds(whole, hit_I, frozenset({"compute", "memory"})),
        "in Python, but not in a single function": _of_kinds(whole, hit_I, frozenset({"python"})),
    }
    where, most_us = max(shares.items(), key=lambda one: one[1])
    new = new_function(view, _MOSTLY * beyond_us * float(hit_I.mean()))
    runs = f"All workers run {new} now, which hardly ran in the {view.past_window}." if new else ""
    text = f"{told}: {format_ms(long)} instead of {format_ms(usual)} here"
    if most_us < _MOSTLY * beyond_us:
        return f"{text}, and nothing recorded accounts for it. {runs or _LONGER}"
    share = percent(min(most_us / beyond_us, 1.0))
    return f"{text}. {share} of the difference lies {where}. {runs or _LOOK}"


def _candidate(view: View, found: Occasions, focus: Focus, agreement: float | None) -> Candidate:
    done = doing(view, found.rows, found.accused)
    activity = activity_of(focus.stack)
    is_input = view.fleet.keys[found.rows[0]].phase == "input"
    what = CAUSES.get(activity, (python_cause(done, is_input=is_input), ""))
    made = candidate_of(view, what, found, focus, agreement, describe(done))
    now_s, before_s = view.context.window.current_iteration_s, view.context.window.baseline_iteration_s
    if not now_s or not before_s:
        return made
    gain = max(1 - before_s / now_s, 0.0) * focus.share * (1.0 if agreement is None else min(agreement, 1.0))
    cost = (
        f"With these iterations the mean is {format_ms(now_s * 1e6)}, before the first of them it was "
        f"{format_ms(before_s * 1e6)}."
    )
    return msgspec.structs.replace(made, gain=gain, evidence=(*made.evidence, cost))


def _interval(view: View) -> float:
    """Return the iterations from one long iteration to the next, as the trigger saw them; 0 if it did not say."""
    window = view.context.window
    return window.period_s / window.current_iteration_s if window.current_iteration_s else 0.0


def _above_usual(time_WI: Floats, hit_I: Flags) -> Floats:
    """Return the time of long iterations beyond the worker's median one; 0 in the others. float64 [W, I]."""
    above_WI = np.maximum(time_WI - np.median(time_WI, axis=1, keepdims=True), 0.0)
    return np.where(hit_I, above_WI, 0.0)


def _common_wait(whole: Fleet, hit_I: Flags) -> float:
    """Return the mean collective time of long iterations, beyond the usual, on the worker that waits least."""
    return float(_above_usual(whole.wait_us, hit_I)[:, hit_I].min(axis=0).mean())


def _collective(whole: Fleet, hit_I: Flags) -> str:
    """Name the collective that takes most of long iterations."""
    rows = [row for row, key in enumerate(whole.keys) if key.kind == "collective"]
    above = {row: float(_above_usual(whole.series([row]), hit_I).sum()) for row in rows}
    return whole.keys[max(above, key=lambda row: above[row])].name if above else "collectives"


def _of_kinds(whole: Fleet, hit_I: Flags, kinds: frozenset[str]) -> float:
    """Return the time of rows of some kinds in long iterations beyond the usual, on the worker with most of it."""
    rows = [row for row, key in enumerate(whole.keys) if key.kind in kinds and whole.critical_us[row].max() > 0]
    above_WI = _above_usual(whole.series(rows), hit_I) if rows else np.zeros_like(whole.iteration_us)
    return float(above_WI[:, hit_I].mean(axis=1).max())
