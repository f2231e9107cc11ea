"""Name the block of excess that causes leave of a slowdown: its function, workers and gain, without a kind of cause.

Array suffixes: R rows, W workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set

import msgspec
import numpy as np

from eroica.diagnosis.account import Part, is_own_time, largest_part
from eroica.diagnosis.arbiter import MOST_DOUBTED, Cause, drop, select_causes
from eroica.diagnosis.candidate import Candidate, FindingKind
from eroica.diagnosis.frames import Focus, find_focus, is_whole_step, whole_rows
from eroica.diagnosis.gains import HALF, LEAST_LEFT, growth_of
from eroica.diagnosis.lateness import accuse
from eroica.diagnosis.limits import LOOP
from eroica.diagnosis.python_code import accuse_python, counted_share
from eroica.diagnosis.selection import with_culprits
from eroica.diagnosis.unexplained import find_unexplained
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.fleet import Fleet
from eroica.model.pattern import FunctionKey
from eroica.model.shares import percent

#: The function holds this share of the block, or none is named.
_MOSTLY = 0.5


def with_rest(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Put the largest block of own time before the causes, where these leave most of the slowdown unexplained.

    The block replaces lateness without a function, which names only workers. Where all that some workers do takes
    longer, so that no part of it is the block, they are what is named.

    Args:
        view: The window.
        causes: In order of falling gain, by the window run again.
    """
    grown = _grown(view)
    named = [cause for cause in causes if cause.candidate.focus.functions or cause.candidate.cause != "unknown"]
    explained = sum(cause.gain for cause in named)
    if explained >= HALF * grown or grown - explained < LEAST_LEFT:
        return list(causes)
    part = largest_part(view)
    candidate = None if part is None else _candidate(view, part)
    found = select_causes(view, [candidate] if candidate is not None else _find_later(view, named))
    if not found or found[0].gain < max(HALF * grown, explained):
        drop(view, found, causes, "it holds less than half of what iterations have grown by, or less than the causes")
        return _with_second(view, causes, named, grown - explained)
    inside = [cause for cause in named if _is_inside(view, cause, found[0])]
    if any(cause.candidate.doubt < 1 for cause in inside):
        return list(causes)
    why = f"it holds most of what iterations have grown by ({percent(grown)}), and the causes found explain less of it"
    kept = [cause for cause in named if cause not in inside]
    drop(view, causes, kept, f"{found[0].candidate.focus.label} holds more of what iterations have grown by")
    return [msgspec.structs.replace(found[0], why=why), *found[1:], *kept]


def _with_second(view: View, causes: Sequence[Cause], named: Sequence[Cause], left: float) -> list[Cause]:
    """Add the largest block beside the rows of causes, for lateness without any, where it holds most of the rest."""
    told = frozenset(at for one in causes for at in (*one.candidate.functions, *one.candidate.focus.functions))
    part = largest_part(view, told) if told else None
    candidate = None if part is None else _candidate(view, part, told)
    found = select_causes(view, [] if candidate is None else [candidate])
    worth = [one for one in found if one.gain >= max(HALF * left, LEAST_LEFT)]
    worth = [msgspec.structs.replace(one, why="it holds most of what the other causes leave") for one in worth]
    return sorted([*named, *worth], key=lambda one: one.weight, reverse=True) if worth else list(causes)


def _find_later(view: View, named: Sequence[Cause]) -> list[Candidate]:
    """List accused workers that are late by far more than what they are accused of takes."""
    late = with_culprits(view, find_unexplained(view, set())) if named else []
    told = [
        sum(each.candidate.excess_us for each in named if {*each.candidate.workers} & {*one.workers}) for one in late
    ]
    return [one for one, us in zip(late, told, strict=True) if 0 < us < HALF * one.excess_us]


def _is_inside(view: View, cause: Cause, whole: Cause) -> bool:
    """True if a cause names the block's function, or has most of its time in the block's rows."""
    own, block = cause.candidate, whole.candidate
    if own.focus.functions and (own.focus.name, own.focus.place) == (block.focus.name, block.focus.place):
        return True
    time_R = view.fleet.critical_us[list(own.functions)][:, list(own.workers)].sum(axis=1)
    return bool(time_R[np.isin(own.functions, block.functions)].sum() > HALF * time_R.sum())


def _grown(view: View) -> float:
    """Return the growth of the iteration since the baseline window, as a share; 0 where nobody finds the job slow."""
    if view.suspects.baseline is None or view.iterations <= MOST_DOUBTED:
        return 0.0  # a seldom window is about its longest iterations, which means say little of
    return growth_of(view)[0] if view.context.window.purpose != "seldom" else 0.0


def _candidate(view: View, part: Part, told: Set[int] = frozenset()) -> Candidate | None:
    """Build a block's candidate: of the function that holds it, else of the operator; None where nothing holds it."""
    focus, least = _function(view, part, told), max(LEAST_LEFT, view.settings.min_gain)
    if focus is not None:
        rows = tuple(sorted({*part.cell.rows, *focus.functions}))
        own = accuse_python(view, rows, focus, part.late, with_operators=True)
        return msgspec.structs.replace(own, evidence=(*own.evidence, _where(part)), least_gain=least)
    name = _operator(view, part)
    if name is None:
        return None
    kind: FindingKind = "compute" if view.fleet.keys[name.functions[0]].kind == "compute" else "other"
    return accuse(part.late, "unknown", kind, name, part.cell.rows, least, (_where(part),))


def _where(part: Part) -> str:
    late = part.late
    place = f"the {part.cell.name} part of the iteration" if part.cell.name else "all that workers do themselves"
    return (
        f"By the account of the iteration it lies in {place}: {format_ms(late.mean_us)} instead of "
        f"{format_ms(late.reference_us)}."
    )


def _function(view: View, part: Part, told: Set[int]) -> Focus | None:
    """Find the frame under which the accused spend most of the block's excess, operators that it calls included.

    Samples of stacks hold the time inside operators, so all frames are one tree. Only where stacks were sampled while
    operators ran; rows that are told count no more.
    """
    past, fleet = view.suspects.baseline, view.fleet
    if past is None or not view.sees_callers:
        return None
    rows = [
        at
        for at, key in enumerate(fleet.keys)
        if key.kind == "python"
        and key.thread == "training"
        and key.phase in part.cell.phases
        and is_own_time(key)
        and at not in told
    ]
    members = list(part.late.workers)
    whole_R = fleet.critical_us[rows][:, members].mean(axis=1)
    time_R = fleet.total_us[rows][:, members].mean(axis=1) * counted_share(view, rows, part.late, whole_R)
    then = _total_before(past, {fleet.ranks[worker] for worker in members})
    excess_R = time_R - np.asarray([then.get(fleet.keys[at], 0.0) for at in rows])
    named = {fleet.keys[at] for at in told}
    before = (time for key, time in then.items() if key.phase in part.cell.phases and key not in named)
    gone = sum(before) - (time_R - excess_R).sum()
    whole = _loop(past)
    bare = {at: _without(fleet.keys[at], whole) for at in rows}
    keys = [bare.get(at, key) for at, key in enumerate(fleet.keys)]
    focus = find_focus(keys, rows, excess_R, time_R)
    if focus is None or not (focus.is_specific and focus.stack):
        return None
    total = max(float(excess_R.sum()) - gone, 1e-9)
    holds = focus.share * float(excess_R.sum()) / total
    heaviest = max(focus.functions, key=lambda at: fleet.total_us[at, members].mean())
    if holds < _MOSTLY:
        return None
    return msgspec.structs.replace(focus, stack=fleet.keys[heaviest].stack, share=min(holds, 1.0))


def _total_before(past: Fleet, ranks: Set[int]) -> dict[FunctionKey, float]:
    """Return the time under each Python row in the baseline window, operators included, as these workers' mean; us."""
    columns = [at for at, rank in enumerate(past.ranks) if rank in ranks]
    if not columns:
        return {}
    mean_F = past.total_us[:, columns].mean(axis=1)
    return {
        key: float(mean_F[at])
        for at, key in enumerate(past.keys)
        if key.kind == "python" and key.thread == "training" and mean_F[at] > 0 and is_own_time(key)
    }


def _loop(past: Fleet) -> frozenset[str]:
    """Find frames that held nearly all that training threads did in the baseline window."""
    held: dict[str, float] = defaultdict(float)
    total = 0.0
    for key, time in zip(past.keys, past.total_us.mean(axis=1).tolist(), strict=True):
        if key.kind == "python" and key.thread == "training":
            total += time
            for frame in set(key.stack):
                held[frame] += time
    return frozenset(frame for frame, time in held.items() if time >= LOOP * total)


def _without(key: FunctionKey, whole: frozenset[str]) -> FunctionKey:
    return msgspec.structs.replace(key, stack=tuple(frame for frame in key.stack if frame not in whole))


def _operator(view: View, part: Part) -> Focus | None:
    """Find the operator, or range that a library marked, that holds most of the block; None where several share it."""
    members, fleet = list(part.late.workers), view.fleet
    rows = list(part.cell.rows)
    reference = view.suspects.before_us if part.late.reference == "baseline" else view.suspects.peers_us
    more_R = (fleet.critical_us[rows] - np.nan_to_num(reference[rows]))[:, members].mean(axis=1)
    by_name: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        by_name.setdefault(fleet.keys[row].name, []).append(at)
    name = max(by_name, key=lambda one: float(more_R[by_name[one]].sum()))
    held = float(more_R[by_name[name]].sum())
    total = max(float(more_R.sum()), 1e-9)
    if is_whole_step(name) or held < _MOSTLY * total:
        return None
    return msgspec.structs.replace(whole_rows(name, [rows[at] for at in by_name[name]]), share=min(held / total, 1.0))
