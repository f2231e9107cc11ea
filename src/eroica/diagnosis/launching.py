"""Hosts that launch kernels more slowly than their peers or than before, and code that launches more than before.

While the host is slow the device waits. What launching takes by itself is no finding: recording slows it by an unknown
share (`host` judges recorded traces). Stacks do not tell what runs on a device meanwhile, but they tell who launches.

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, whole_rows
from eroica.diagnosis.lateness import Lateness, accuse, judge_group, late_against_baseline, measure
from eroica.diagnosis.launches import launching_rows
from eroica.diagnosis.speed import operators, queued_share
from eroica.diagnosis.under_operators import find_caller, past_of, usual_of
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, short_name
from eroica.localize.excess import median_of_others
from eroica.localize.fleet import Fleet
from eroica.model.pattern import LAUNCHING, Phase
from eroica.model.shares import percent

Floats = NDArray[np.float64]
_PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer", "other")
#: Equally many launches: more of them than this are more work.
_MORE = 1.1
#: From so many times as many on they are new work, unless forward and backward have grown alike: more batches a step.
_MANY_MORE = 1.25
_ALIKE = 0.2
#: A kernel has grown if it takes this many times as long per iteration as in the healthy window.
_GROWN = 1.5
#: Waiting for a core explains slower launching from this share of it on.
_EXPLAINED_BY_QUEUE = 0.5


def find_slow_launching(view: View) -> list[Candidate]:
    """Workers, or all, on which devices wait longer for the host than on their peers, or than before."""
    if view.is_trace or not view.fleet.has_accelerator:
        return []
    found: dict[tuple[str, tuple[int, ...]], list[tuple[Lateness, list[int]]]] = {}
    for phase in _PHASES:
        rows = launching_rows(view.fleet, phase)
        for late in judge_group(view, rows, None):
            found.setdefault((late.reference, late.workers), []).append((late, rows))
    return [_candidate(view, parts) for parts in found.values()]


def find_more_kernels(view: View) -> list[Candidate]:
    """A function that launches more kernels on all workers than in the healthy window, and what these take."""
    past = past_of(view)
    if view.is_trace or not view.fleet.has_accelerator or past is None or not view.is_slow:
        return []
    more = _phases_with_more(view)
    caller = find_caller(view, range(view.workers), past) if more else None
    if caller is None:
        return []
    rows = operators(view.fleet)
    now_R, then_R = (np.nan_to_num(of[rows]).mean(axis=1) for of in (view.fleet.critical_us, view.suspects.before_us))
    grown = [row for row, now, then in zip(rows, now_R, then_R, strict=True) if now > max(_GROWN * then, 1e-9)]
    found = late_against_baseline(view, measure(view, grown), excused=False) if grown else iter(())
    late = next((late for late in found if late.agreement is None), None)
    if late is None:
        return []
    counts = " and ".join(
        f"{count:.0f} kernels in {phase} (then {usual:.0f})" for phase, (count, usual) in more.items()
    )
    heaviest = view.fleet.keys[rows[int(np.argmax(now_R - then_R))]].name
    text = (
        f"Per iteration the host launches {counts}: {short_name(heaviest)} first; what has grown takes the device "
        f"{format_ms(late.mean_us)}, in the healthy window {format_ms(late.reference_us)}.",
        f"The host is in {caller.focus.label} for {format_ms(caller.own_us)}; then {format_ms(caller.other_us)}.",
    )
    focus = msgspec.structs.replace(caller.focus, functions=tuple(grown))
    return [accuse(late, "python-on-critical-path", "python", focus, grown, view.settings.min_gain, text)]


def _phases_with_more(view: View) -> dict[Phase, tuple[float, float]]:
    """Parts of the iteration with many more launches than in the healthy window: how many, and how many then."""
    counts = {phase: _since(view, phase) for phase in _PHASES}
    forward, backward = (now / then if then > 0 else 1.0 for now, then in (counts["forward"], counts["backward"]))
    if abs(forward - backward) <= _ALIKE * max(forward, backward):
        counts = {phase: both for phase, both in counts.items() if phase not in ("forward", "backward")}
    return {phase: both for phase, both in counts.items() if both[0] > _MANY_MORE * both[1] and both[0] >= 1}


def _since(view: View, phase: Phase) -> tuple[float, float]:
    """Launches per iteration of the worker with fewest, and in the healthy window of the one with most."""
    now_W = view.fleet.count[launching_rows(view.fleet, phase)].sum(axis=0)
    then_W = view.then(lambda past: past.count[launching_rows(past, phase)].sum(axis=0))
    return float(now_W.min()), float(np.nan_to_num(then_W).max())


def _candidate(view: View, parts: Sequence[tuple[Lateness, list[int]]]) -> Candidate:
    first = max((late for late, _ in parts), key=lambda late: late.mean_us - late.reference_us)
    late = msgspec.structs.replace(
        first,
        removed_us=np.sum([one.removed_us for one, _ in parts], axis=0),
        mean_us=sum(one.mean_us for one, _ in parts),
        reference_us=sum(one.reference_us for one, _ in parts),
    )
    rows = [row for _, own in parts for row in own]
    count, usual = _launches(view, rows, late)
    has_more = not count <= _MORE * usual
    focus, evidence = _who_launches(view, late, rows) if has_more else (whole_rows(LAUNCHING, rows), ())
    cause, why = ("host-bound", ()) if has_more else _why_slower(view, late)
    usually = "in the healthy window" if late.reference == "baseline" else "on the peers"
    text = (
        f"The host launches {count:.0f} kernels there per iteration, {usual:.0f} {usually}, and the device has no work "
        f"for {format_ms(late.mean_us)} meanwhile, {format_ms(late.reference_us)} {usually}."
    )
    return accuse(late, cause, "other", focus, rows, view.settings.min_gain, (text, *why, *evidence))


def _launches(view: View, rows: Sequence[int], late: Lateness) -> tuple[float, float]:
    """Launches per iteration on the accused, and on what they are compared with; NaN where nothing tells."""
    members, places = list(late.workers), list(rows)
    count_W = view.fleet.count[places].sum(axis=0)
    if late.reference == "peers":
        usual_W = median_of_others(count_W, view.fleet.roles)
    else:
        phases = {view.fleet.keys[row].phase for row in rows}
        usual_W = view.then(lambda past: past.count[_same_rows(past, phases)].sum(axis=0))
    return float(count_W[members].mean()), float(usual_W[members].mean())


def _same_rows(fleet: Fleet, phases: set[Phase]) -> list[int]:
    return [row for phase in phases for row in launching_rows(fleet, phase)]


def _who_launches(view: View, late: Lateness, rows: Sequence[int]) -> tuple[Focus, tuple[str, ...]]:
    """The function that most of the additional launches lie under, where stacks tell."""
    usual = usual_of(view, late.reference)
    caller = find_caller(view, late.workers, usual) if usual is not None else None
    if caller is None:
        return whole_rows(LAUNCHING, rows), ()
    usually = "before" if late.reference == "baseline" else "on the peers"
    text = f"{caller.focus.label} launches for {format_ms(caller.own_us)}; {usually} {format_ms(caller.other_us)}."
    return msgspec.structs.replace(caller.focus, functions=tuple(rows)), (text,)


def _why_slower(view: View, late: Lateness) -> tuple[str, tuple[str, ...]]:
    """Whether the training thread's waits for a core explain that each launch takes longer."""
    queue_W = queued_share(view.fleet)
    usual_W = median_of_others(queue_W, view.fleet.roles) if late.reference == "peers" else view.then(queued_share)
    more = float(np.nan_to_num(queue_W - usual_W)[list(late.workers)].mean())
    if more * view.iteration_us < _EXPLAINED_BY_QUEUE * (late.mean_us - late.reference_us):
        return "host-bound", ("Each launch takes longer: the host's cores are slower, or something beside it runs.",)
    return "cpu-contention", (f"Training threads wait {percent(more)} more of their time for a core.",)
