"""Functions of the user's that hand their work to operators: who called what has come to take longer.

Such a function hardly takes time by itself, so operators show as more work and nothing names it. But stacks are sampled
during operators, too. Where the samples under one function cover the additional work, and the peers, or the healthy
window, know little of it, while most other operators take as long as ever, it is that function's. Batches that have
grown, and slow processors, change all operators; they are other rules' matter.

Array suffixes: R rows, W workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, Reference
from eroica.diagnosis.frames import Focus, find_focus
from eroica.diagnosis.lateness import accuse, late_against_baseline, measure
from eroica.diagnosis.python_code import is_judged_elsewhere
from eroica.diagnosis.speed import operators
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import median_of_others
from eroica.model.pattern import FunctionKey

Floats = NDArray[np.float64]
_PYTHON = "python-on-critical-path"
#: What the work of such a function looks like.
_WORK = frozenset({"load-imbalance", "compute-slow"})
#: Others spend at most this share of the time under the function.
_KNOWN = 0.5
#: Of the additional work, the samples under the function cover this share.
_COVERS = 0.6
#: From this factor over all operators on, it is not one function's operators that take longer.
_ALTOGETHER = 1.3
#: What all do more, each does at least this share of the mean more.
_COMMON = 0.3
#: An operator has grown if it takes this many times as long as in the healthy window.
_GROWN = 1.5


class _Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A function, and the time of the training thread under it, operators included, microseconds per iteration."""

    focus: Focus
    own_us: float
    other_us: float

    @property
    def excess_us(self) -> float:
        return self.own_us - self.other_us


def name_callers(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates; uneven work that one function calls is named by it, and what all do more in one is added.

    Where operators run on a device, and in recorded traces, stacks do not tell what runs meanwhile.
    """
    if view.fleet.has_accelerator or view.is_trace:
        return list(candidates)
    named = [_named(view, one, candidates) for one in candidates]
    whole = {one.focus.label for one in named if one not in candidates}
    kept = [one for one in named if one not in candidates or not (one.cause == _PYTHON and one.focus.label in whole)]
    for one in _since(view, kept):
        kept = [*(other for other in kept if other.cause != _PYTHON or other.focus.label != one.focus.label), one]
    return kept


def _named(view: View, work: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """Work told as that of the function that calls it, with the time that another rule has seen of that function."""
    caller = _caller_of(view, work)
    if caller is None:
        return work
    own = [one for one in candidates if one.cause == _PYTHON and one.focus.label == caller.focus.label]
    seen = [one.removed_us for one in own if one.workers == work.workers and one.gain is None]
    return _as_function(msgspec.structs.replace(work, removed_us=sum(seen, start=work.removed_us)), caller)


def _caller_of(view: View, candidate: Candidate) -> _Caller | None:
    """The function that some workers' additional work is called by."""
    own = candidate.cause in _WORK and candidate.scope == "some" and candidate.kind == "compute"
    if not own or candidate.reference != "peers" or candidate.gain is not None:
        return None
    if np.nanmax(view.speed.factor[list(candidate.workers)], initial=0.0) >= _ALTOGETHER:
        return None
    found = _find_caller(view, candidate.workers, "peers")
    return found if found is not None and found.excess_us >= _COVERS * candidate.excess_us else None


def _find_caller(view: View, workers: Sequence[int], reference: Reference) -> _Caller | None:
    """The own function that holds what these workers do more under any, less what the autograd engine runs."""
    fleet, members = view.fleet, list(workers)
    rows = [at for at, key in enumerate(fleet.keys) if _is_own_time(key)]
    if not rows:
        return None
    total_RW = fleet.total_us[rows]
    usual_RW = median_of_others(total_RW, fleet.roles) if reference == "peers" else _before(view, rows)
    time_R, usual_R = (np.nan_to_num(part_RW[:, members]).mean(axis=1) for part_RW in (total_RW, usual_RW))
    focus = find_focus(fleet.keys, rows, np.maximum(time_R - usual_R, 0.0), time_R)  # who waits less does not do less
    if focus is None or not (focus.is_own and focus.is_specific):
        return None
    held = np.isin(rows, focus.functions)
    found = _Caller(focus=focus, own_us=float(time_R[held].sum()), other_us=float(usual_R[held].sum()))
    floor_us = view.settings.min_gain * view.iteration_us
    return found if found.other_us <= _KNOWN * found.own_us and found.excess_us >= floor_us else None


def _is_own_time(key: FunctionKey) -> bool:
    """Python of the training thread, but for what loading and other rules judge; also what operators cover wholly."""
    is_python = key.kind == "python" and key.thread == "training" and key.phase != "input"
    return is_python and not is_judged_elsewhere(key.stack)


def _before(view: View, rows: Sequence[int]) -> Floats:
    """Time of rows in the healthy window, operators under them included; 0 where they were not. float64 [R, W]."""
    past, fleet = view.suspects.baseline, view.fleet
    assert past is not None
    places = {key: at for at, key in enumerate(past.keys)}
    columns = {rank: column for column, rank in enumerate(past.ranks)}
    before_RW = np.zeros((len(rows), view.workers))
    for worker, rank in enumerate(fleet.ranks):
        at = [places.get(fleet.keys[row], -1) for row in rows]
        if rank in columns:
            before_RW[:, worker] = [past.total_us[place, columns[rank]] if place >= 0 else 0.0 for place in at]
    return before_RW


def _as_function(work: Candidate, caller: _Caller) -> Candidate:
    """The same time, told as the function's."""
    focus = caller.focus
    return msgspec.structs.replace(
        work,
        cause=_PYTHON,
        kind="python",
        focus=focus,
        functions=focus.functions,
        mean_us=caller.own_us,
        reference_us=caller.other_us,
        coverage=focus.share,
        subject="",
        sentence="",
        next_step="",
        evidence=(_calls(work.focus.name, work.excess_us),),
    )


def _calls(operator: str, excess_us: float) -> str:
    return f"Its time is that of operators which it calls, {operator} first; they take {format_ms(excess_us)} more."


def _since(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """What all workers do more than in the healthy window in operators of one function."""
    if view.suspects.baseline is None or np.nanmedian(view.speed_change.factor) >= _ALTOGETHER:
        return []
    caller = _find_caller(view, range(view.workers), "baseline")
    everybody = [one.focus.label for one in candidates if one.cause == _PYTHON and one.scope == "all"]
    if caller is None or caller.focus.label in everybody or not _is_common(view, caller):
        return []
    phases = {view.fleet.keys[row].phase for row in caller.focus.functions}
    grown = _grown(view, phases | ({"backward"} if "forward" in phases else set()))
    own = [row for row in grown if view.fleet.keys[row].phase in phases]
    more_R = _growth(view, own)
    if not own or caller.excess_us < _COVERS * float(more_R.sum()):
        return []
    late = next((late for late in late_against_baseline(view, measure(view, grown), excused=False)), None)
    if late is None or late.agreement is not None:
        return []
    longer_us = view.iteration_us - view.suspects.baseline.mean_iteration_us
    share = min(1.0, max(longer_us, 0.0) / max(float(late.removed_us.mean()), 1e-9))  # it may have replaced other work
    removed_WI = late.removed_us * share
    late = msgspec.structs.replace(late, removed_us=removed_WI, mean_us=caller.own_us, reference_us=caller.other_us)
    first = view.fleet.keys[own[int(more_R.argmax())]].name
    evidence = [_calls(first, float(more_R.sum()))]
    if gradients := [row for row in grown if row not in own]:
        evidence.append(f"Their gradients take {format_ms(float(_growth(view, gradients).sum()))} more in backward.")
    least = view.settings.min_gain
    return [accuse(late, _PYTHON, "python", caller.focus, caller.focus.functions, least, tuple(evidence))]


def _is_common(view: View, caller: _Caller) -> bool:
    """Whether every worker spends far more time under the function than then, and none far less than the others."""
    rows = list(caller.focus.functions)
    now_W = view.fleet.total_us[rows].sum(axis=0)
    more_W = now_W - _before(view, rows).sum(axis=0)
    return bool(((more_W >= _KNOWN * now_W) & (more_W >= _COMMON * more_W.mean())).all())


def _grown(view: View, phases: set[str]) -> list[int]:
    """Operators of these parts of the iteration that take far longer than in the healthy window."""
    rows = [row for row in operators(view.fleet) if view.fleet.keys[row].phase in phases]
    now_R = view.fleet.critical_us[rows].mean(axis=1)
    more_R = _growth(view, rows)
    return [
        row for row, now, more in zip(rows, now_R, more_R, strict=True) if more > 0 and now >= _GROWN * (now - more)
    ]


def _growth(view: View, rows: Sequence[int]) -> Floats:
    """How much longer operators take than in the healthy window, mean over workers. float64 [R]."""
    before_RW = np.nan_to_num(view.suspects.before_us[list(rows)])
    return np.asarray((view.fleet.critical_us[list(rows)] - before_RW).mean(axis=1))
