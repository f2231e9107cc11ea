"""Find functions of the user's that hand their work to operators, as callers of what has come to take longer.

Such a function hardly takes time by itself, so operators show as more work and nothing names it. But stacks are sampled
during operators, too. Where the samples under one function cover the additional work, and the peers, or the healthy
window, hardly know of it, while other operators of that part of the iteration take as long as ever, it is that
function's. Batches that have grown, more of them, and slow processors change all operators: other rules' matter.

Array suffixes: R rows, W workers.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.growth import has_grown
from eroica.diagnosis.lateness import Lateness, accuse, late_against_baseline, measure
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.speed import operators, speed_against_baseline
from eroica.diagnosis.under_operators import (
    Caller,
    Past,
    find_called_focus,
    find_caller,
    inside_us,
    past_of,
    phases_called_in,
    rows_under,
    usual_of,
)
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, short_name

Floats = NDArray[np.float64]
_PYTHON = "python-on-critical-path"
#: What the work of such a function looks like; what has a name of its own keeps it.
_WORK = frozenset({"load-imbalance", "compute-slow"})
_STORM = "memory-operation-storm"
#: Operators under the function take the others, or took when all was well, at most this share of the time.
_HARDLY = 0.1
_HARDLY_THEN = 1 / 3
#: From this factor over the operators of its part of the iteration on, it is not one function's that take longer.
_ALTOGETHER = 1.3
#: Samples under a function miss this share of its operators' time.
_INEXACT = 0.15
#: An operator has grown if it takes this many times as long as in the baseline window.
_GROWN = 1.5
#: What all do more is what each does: nobody has more than this many times what the one with least has.
_MOST_OF_LEAST = 1.5


def name_callers(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Name uneven work by the function that calls it, and add the function in which all workers do more.

    Recorded traces do not tell callers, nor do devices whose launches nobody knows.
    """
    if not view.knows_callers:
        return list(candidates)
    named: list[Candidate] = []
    counted_in: set[int] = set()
    for work in candidates:
        caller = _caller_of(view, work, candidates)
        own = [one for one in candidates if caller is not None and _is_of(one, caller, work)]
        counted_in.update(map(id, own))
        named.append(work if caller is None else _told(work, caller, own))
    kept = [one for one, before in zip(named, candidates, strict=True) if id(before) not in counted_in]
    return [*kept, *_since(view, kept)]


def _is_of(candidate: Candidate, caller: Caller, work: Candidate) -> bool:
    """True if a candidate is the function's own Python on the same workers, on top of which its operators come."""
    same = candidate.cause == _PYTHON and candidate.focus.label == caller.focus.label and candidate.gain is None
    return same and _is_new(caller, _HARDLY) and candidate.workers == work.workers


def _is_new(caller: Caller, share: float) -> bool:
    return caller.other_us <= share * caller.own_us


def _caller_of(view: View, work: Candidate, candidates: Sequence[Candidate]) -> Caller | None:
    """Find the function that calls some workers' additional work."""
    own = work.cause in _WORK and work.scope == "some" and work.kind == "compute"
    usual = usual_of(view, work.reference) if own and work.gain is None else None
    if usual is None:
        return None
    if any(_is_storm(one, work) for one in candidates):
        return None
    speed = view.speed if work.reference == "peers" else view.speed_change
    factor_W = speed.factor[list(work.workers)]
    if np.isnan(factor_W).all() or np.nanmax(factor_W) >= _ALTOGETHER:
        return None
    caller = find_caller(view, work.workers, usual)
    return caller if caller is not None and caller.accounts_for(work.excess_us) else None


def _is_storm(candidate: Candidate, work: Candidate) -> bool:
    """True if a candidate tells the same work as one of memory operations: most of it, on workers that overlap."""
    same = candidate.cause == _STORM and bool(set(candidate.workers) & set(work.workers))
    return same and candidate.excess_us >= MOST * work.excess_us


def _told(work: Candidate, caller: Caller, own: Sequence[Candidate]) -> Candidate:
    """Accuse the function where others hardly have its work; else name it in the evidence of the work."""
    focus = caller.focus
    if not _is_new(caller, _HARDLY):
        usually = "before" if work.reference == "baseline" else "elsewhere"
        place = f"Most of it lies in {focus.label}: {format_ms(caller.own_us)}, {usually} {format_ms(caller.other_us)}."
        return msgspec.structs.replace(work, evidence=(*work.evidence, place))
    own_us, usual_us = sum(one.mean_us for one in own), sum(one.reference_us for one in own)
    return msgspec.structs.replace(
        work,
        cause=_PYTHON,
        kind="python",
        focus=focus,
        functions=focus.functions,
        removed_us=sum((one.removed_us for one in own), start=work.removed_us),
        held_W=None,
        mean_us=caller.own_us + own_us,
        reference_us=caller.other_us + usual_us,
        coverage=focus.share,
        subject="",
        sentence="",
        next_step="",
        is_one_operator=False,
        evidence=(_calls(work.focus.name, work.excess_us),),
    )


def _calls(operator: str, excess_us: float) -> str:
    first = short_name(operator)
    return f"Its time is that of operators which it calls, {first} first; they take {format_ms(excess_us)} more."


def _since(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Find the function whose operators take all workers longer than in the baseline window."""
    past = past_of(view)
    longer_us = view.iteration_us - past.fleet.mean_iteration_us if past is not None else 0.0
    if past is None or not view.is_slow or longer_us < view.settings.min_gain * view.iteration_us or has_grown(view):
        return []
    caller = _caller_since(view, past)
    everybody = [one for one in candidates if one.scope == "all"]
    if caller is None or any(one.focus.label == caller.focus.label for one in everybody):
        return []
    phases = phases_called_in(view, caller)
    if _grew_altogether(view, caller, phases):
        return []
    late, evidence = _grown(view, caller, phases)
    if late is None:
        return []
    cost_us = float(late.removed_us.mean())
    if any(float(one.removed_us.mean()) >= MOST * cost_us for one in everybody):
        return []
    removed_WI = late.removed_us * min(1.0, longer_us / max(cost_us, 1e-9))  # it may have replaced other work
    late = msgspec.structs.replace(late, removed_us=removed_WI, mean_us=caller.own_us, reference_us=caller.other_us)
    least = view.settings.min_gain
    return [accuse(late, _PYTHON, "python", caller.focus, caller.focus.functions, least, evidence)]


def _caller_since(view: View, past: Past) -> Caller | None:
    """Find the function under which every worker's operators hardly took any time in the baseline window."""
    focus = find_called_focus(view, range(view.workers), past)
    if focus is None:
        return None
    now_W, before_W = inside_us(view.fleet, rows_under(view.fleet, focus)), past.under(focus)
    caller = Caller(focus=focus, own_us=float(np.median(now_W)), other_us=float(before_W.mean()))
    enough = caller.excess_us >= view.settings.min_gain * view.iteration_us
    return caller if enough and bool((before_W <= _HARDLY_THEN * now_W).all()) else None


def _operators_in(view: View, phases: Set[str]) -> list[int]:
    return [row for row in operators(view.fleet) if view.fleet.keys[row].phase in phases]


def _now_and_then(view: View, rows: list[int]) -> tuple[Floats, Floats]:
    """Return the mean time of operators over the workers, now and in the baseline window. float64 [R] each."""
    then_RW = np.nan_to_num(view.suspects.before_us[rows])
    return np.asarray(view.fleet.critical_us[rows].mean(axis=1)), np.asarray(then_RW.mean(axis=1))


def _grew_altogether(view: View, caller: Caller, phases: Set[str]) -> bool:
    """True if the other operators of these parts of the iteration take longer too: more data, or slower processors.

    Or forward runs more often: more batches for a step of the optimizer.
    """
    rows = _operators_in(view, phases)
    now_R, then_R = _now_and_then(view, rows)
    rest_us, rest_then_us = float(now_R.sum()) - caller.own_us, float(then_R.sum()) - caller.other_us
    floor_us = view.settings.min_gain * view.iteration_us
    if rest_us >= _ALTOGETHER * max(rest_then_us, floor_us) + _INEXACT * caller.own_us:
        return True
    times_W = speed_against_baseline(view.suspects, frozenset(phases)).count_ratio
    return "forward" in phases and bool((times_W >= _ALTOGETHER).any())


def _grown(view: View, caller: Caller, phases: Set[str]) -> tuple[Lateness | None, tuple[str, ...]]:
    """Find operators that have grown with the function, backward with forward; None where they are not its own."""
    rows = _operators_in(view, phases | ({"backward"} if "forward" in phases else set()))
    now_R, then_R = _now_and_then(view, rows)
    grown = [row for row, now, then in zip(rows, now_R, then_R, strict=True) if now > max(_GROWN * then, 1e-9)]
    more = {row: float(now - then) for row, now, then in zip(rows, now_R, then_R, strict=True)}
    own = [row for row in grown if view.fleet.keys[row].phase in phases]
    more_us = sum(more[row] for row in own)
    if not own or not caller.accounts_for(more_us):
        return None, ()
    late = next((late for late in late_against_baseline(view, measure(view, grown), excused=False)), None)
    if late is None or late.agreement is not None:
        return None, ()
    first = view.fleet.keys[max(own, key=lambda row: more[row])].name
    evidence = [_calls(first, more_us)]
    others_us = sum(more[row] for row in grown if row not in own)
    if others_us >= _HARDLY * more_us:
        evidence.append(f"Operators of backward take {format_ms(others_us)} more as well.")
    mean_W1 = late.removed_us.mean(axis=1, keepdims=True)
    common_us = _MOST_OF_LEAST * float(mean_W1.min())
    shared_WI = late.removed_us * np.minimum(1.0, common_us / np.maximum(mean_W1, 1e-9))
    return msgspec.structs.replace(late, removed_us=shared_WI), tuple(evidence)
