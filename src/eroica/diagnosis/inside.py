"""Operators that one Python function of the user's calls: they are what that function does.

Operators, memory operations, collectives and garbage collections stand before the Python around them, so a loop over
tiny tensors shows as more operators, and the function only as what is left between them. Stacks are sampled inside
operators, too: where the samples under a function cover them, and its peers, or the baseline window, hardly know the
function, it is the cause and they are its cost.

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]
#: What a function's operators may look like, unless one of them alone seems slow. A storm of copies that holds most of
#: it stays a cause of its own.
_LOOKS_LIKE = frozenset({"load-imbalance", "memory-operation-storm", "fragmented-collectives"})
_STORM = "memory-operation-storm"
_COLLECTIONS = "garbage-collection"
#: Of what the samples cover, this much must have come on top of what all others, or the baseline window, have, too;
#: less of it where collections do, which come seldom.
_GREW, _GREW_COLLECTING = 0.6, 0.4
#: Time inside operators that is worth a word, as a share of what is left between them.
_LEAST_INSIDE = 0.2
#: Share of the iteration that it must take with its operators, and by itself: of less, samples are too few.
_LEAST_WHOLE = 0.05
_LEAST_OWN = 0.02
#: Who does not have the trouble spends at most this share of the time under the function.
_HARDLY = 1 / 3
#: An operator runs as often if it does within this share, and each takes far longer from so many times on.
_AS_OFTEN = 0.25
_FAR_LONGER = 3.0
_LARGER = (
    "Look at the size of the tensors that reach it (rows, neighbors, sequence length, batch) and at their layout, and "
    "bound or balance it: the operators in it run as often as elsewhere, but on more."
)
#: A candidate that costs more than this many times what the function's operators do is something else.
_TOO_LARGE = 1.5


def put_operators_inside(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add to functions the time of the operators they call, and drop candidates that only show these operators.

    Where operators run on a device, and in recorded traces, stacks do not tell what runs meanwhile.
    """
    found = list(candidates)
    if not view.sees_callers:
        return found
    kinds = {"compute", "memory"} | ({"gc"} if all(one.cause != _COLLECTIONS for one in candidates) else set())
    for one in candidates:
        inside_us = _inside(view, one, kinds) if _may_call(one) else 0.0
        if inside_us <= 0 or any(_is_storm(other, one, inside_us) for other in found):
            continue
        found = [other for other in found if other is one or not _is_part(other, one, inside_us)]
        collects = "gc" in kinds and _more_called(view, one, {"gc"}) >= _LEAST_INSIDE * inside_us
        found[found.index(one)] = _with_operators(view, one, inside_us, collects)
    return found


def _may_call(candidate: Candidate) -> bool:
    own = candidate.cause == "python-on-critical-path" and candidate.focus.is_own and candidate.focus.is_specific
    return own and candidate.gain is None and not candidate.is_elsewhere and candidate.scope != "rotating"


def _is_part(candidate: Candidate, function: Candidate, inside_us: float) -> bool:
    like = (candidate.cause in _LOOKS_LIKE or candidate.is_one_operator) and candidate.scope == function.scope
    return like and set(candidate.workers) <= set(function.workers) and candidate.excess_us <= _TOO_LARGE * inside_us


def _is_storm(candidate: Candidate, function: Candidate, inside_us: float) -> bool:
    same = candidate.cause == _STORM and bool(set(candidate.workers) & set(function.workers))
    return same and candidate.excess_us >= MOST * (function.excess_us + inside_us)


def _inside(view: View, candidate: Candidate, kinds: Set[str]) -> float:
    """Measure the excess of the accused in rows of some kinds under the function, microseconds per iteration.

    0 where that is not the function's own.
    """
    if candidate.excess_us < _LEAST_OWN * view.iteration_us:
        return 0.0
    members = list(candidate.workers)
    frame = candidate.focus.entry
    whole_W = _under(view.fleet, frame)
    own_us, other_us = float(whole_W[members].mean()), _reference(view, candidate, frame, whole_W)
    if other_us > _HARDLY * own_us or own_us < _LEAST_WHOLE * view.iteration_us:
        return 0.0
    inside_us = own_us - other_us - candidate.excess_us
    if inside_us < _LEAST_INSIDE * candidate.excess_us:
        return 0.0
    more_us = _more_called(view, candidate, kinds)
    if candidate.scope == "all":
        more_us += max(_more_called(view, candidate, {"collective"}), 0.0)
    collects = "gc" in kinds and _more_called(view, candidate, {"gc"}) >= _LEAST_INSIDE * inside_us
    least_us = (_GREW_COLLECTING if collects else _GREW) * inside_us
    return min(inside_us, more_us) if more_us >= least_us else 0.0


def _under(fleet: Fleet, frame: str) -> Floats:
    """Return the training thread's time in stacks with a frame, operators included. float64 [W]."""
    rows = [
        at
        for at, key in enumerate(fleet.keys)
        if key.kind == "python" and key.thread == "training" and frame in key.stack
    ]
    return np.asarray(fleet.total_us[rows].sum(axis=0))


def _reference(view: View, candidate: Candidate, frame: str, whole_W: Floats) -> float:
    """Return the time under the frame on the others, or in the baseline window; infinite where neither is known."""
    if candidate.reference == "baseline":
        then_W = view.then(lambda past: _under(past, frame))[list(candidate.workers)]
        return np.inf if np.isnan(then_W).all() else float(np.nanmean(then_W))
    others = np.setdiff1d(np.arange(view.workers), candidate.workers)
    return float(whole_W[others].mean()) if candidate.reference == "peers" and others.size else np.inf


def _more_called(view: View, candidate: Candidate, kinds: Set[str]) -> float:
    """Measure how much longer rows of some kinds take the accused than the reference, microseconds per iteration."""
    rows = [at for at, key in enumerate(view.fleet.keys) if key.kind in kinds and view.fleet.critical_us[at].any()]
    source = view.suspects.peers_us if candidate.reference == "peers" else view.suspects.before_us
    more_RW = view.fleet.critical_us[rows] - np.nan_to_num(source[rows])
    return float(more_RW[:, list(candidate.workers)].sum(axis=0).mean())


def _with_operators(view: View, candidate: Candidate, inside_us: float, collects: bool) -> Candidate:
    removed_WI = candidate.removed_us.copy()
    removed_WI[list(candidate.workers)] += inside_us
    what = "Operators that it calls and garbage collections in it" if collects else "Operators that it calls"
    text = f"{what} take {format_ms(inside_us)} more per iteration; that is counted in."
    longer = _longer_operator(view, candidate, inside_us) if inside_us >= candidate.excess_us else ""
    return msgspec.structs.replace(
        candidate,
        removed_us=removed_WI,
        mean_us=candidate.mean_us + inside_us,
        evidence=(*candidate.evidence, text, *([longer] if longer else [])),
        next_step=_LARGER if longer and not candidate.next_step else candidate.next_step,
    )


def _longer_operator(view: View, candidate: Candidate, inside_us: float) -> str:
    """Describe the operator that holds most of the excess, if it runs as often as elsewhere and each takes longer.

    Tensors are larger then, or lie in memory otherwise: moving the Python around it elsewhere would not help.
    """
    fleet, members = view.fleet, list(candidate.workers)
    rows = [at for at, key in enumerate(fleet.keys) if key.kind in ("compute", "memory") and key.thread == "training"]
    since = candidate.reference == "baseline"
    before_us = (view.suspects.before_us if since else view.suspects.peers_us)[rows][:, members]
    more_R = (fleet.critical_us[rows][:, members] - np.nan_to_num(before_us)).mean(axis=1)
    if not rows or more_R.max() < MOST * inside_us:
        return ""
    row = rows[int(more_R.argmax())]
    key = fleet.keys[row]
    count = float(fleet.count[row, members].mean())
    each_us = float(fleet.total_us[row, members].mean()) / max(count, 1e-9)
    usual, usual_us = _usual_runs(view, row, members, since)
    if usual <= 0 or not 1 - _AS_OFTEN <= count / usual <= 1 + _AS_OFTEN or each_us < _FAR_LONGER * usual_us:
        return ""
    where = f"in the {view.past_window}" if since else "on the peers"
    return (
        f"Most of that is {key.name}: as often as {where} ({count:.3g} times), but {each_us / usual_us:.0f} times as "
        "long each. It works on more data, or on data that lies in memory otherwise."
    )


def _usual_runs(view: View, row: int, members: list[int], since: bool) -> tuple[float, float]:
    """Return a row's executions in an iteration, and microseconds each, on the peers or before; 0 if unknown."""
    if not since:
        own = view.fleet.count[row], view.fleet.total_us[row]
        counted, spent = (view.fleet.usual(of_W) for of_W in own)
    elif then := view.rows_before([row]):
        counted, spent = view.then(lambda past: past.count[then[0]]), view.then(lambda past: past.total_us[then[0]])
    else:
        return 0.0, 0.0
    count, total_us = (float(np.nan_to_num(of_W[members]).mean()) for of_W in (counted, spent))
    return count, total_us / max(count, 1e-9)
