"""Hosts that take longer to launch kernels than their peers', or than they did: more launches, or each one slower.

The device waits meanwhile. What launching takes by itself is no finding: recording slows it by an unknown share
(`host` judges recorded traces).

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.lateness import JOB_WIDE, Lateness, accuse, judge_group
from eroica.diagnosis.speed import EXPLAINED_BY_QUEUE, launching_rows, queued_share
from eroica.diagnosis.under_operators import Caller, find_caller, host_us, phases_called_in, usual_of
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.fleet import Fleet
from eroica.model.pattern import BESIDE_INPUT, LAUNCHING, Phase
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: Equally many launches: more of them than this are more work.
_MORE = 1.1


def find_slow_launching(view: View) -> list[Candidate]:
    """Accuse workers, or all, on which devices wait longer for the host than on their peers, or than before."""
    if view.is_trace or not view.fleet.has_accelerator:
        return []
    found = []
    for reference, usual_FW in (("peers", view.suspects.peers_us), ("baseline", view.suspects.before_us)):
        parts = list(_longer(view, usual_FW))
        judged = judge_group(view, [row for rows in parts for row in rows], None)
        known = [late for late in judged if late.reference == reference and _is_known(view, late)]
        found += [_candidate(view, late, parts, usual_FW) for late in known]
    return found


def _longer(view: View, usual_FW: Floats) -> Iterator[list[int]]:
    """List the rows of each part of the iteration in which launching takes a worker longer, sure or not by itself."""
    for phase in BESIDE_INPUT:
        rows = launching_rows(view.fleet, phase)
        more_W = (view.fleet.critical_us[rows] - np.nan_to_num(usual_FW[rows])).sum(axis=0)
        if more_W.max(initial=0.0) >= view.settings.min_gain * view.iteration_us:
            yield rows


def _is_known(view: View, late: Lateness) -> bool:
    """True if launches are counted on the accused and on the reference: samplers fail on some workers."""
    members = list(late.workers)
    known_W = _count(view.fleet) > 0
    if late.reference == "baseline":
        return bool(known_W[members].all() and (view.then(_count)[members] > 0).all())
    return bool(known_W[members].all() and known_W.mean() >= JOB_WIDE)


def _count(fleet: Fleet) -> Floats:
    """Count launches of each worker per iteration. float64 [W]."""
    return np.asarray(fleet.count[launching_rows(fleet)].sum(axis=0))


def _candidate(view: View, late: Lateness, parts: Sequence[list[int]], usual_FW: Floats) -> Candidate:
    rows = [row for own in parts for row in own]
    count, usual = _launches(view, rows, late)
    usually = f"in the {view.past_window}" if late.reference == "baseline" else "on the peers"
    text = (
        f"The host launches {count:.0f} kernels there per iteration, {usual:.0f} {usually}, and the device has no work "
        f"for {format_ms(late.mean_us)} meanwhile, {format_ms(late.reference_us)} {usually}."
    )
    has_more = not count <= _MORE * usual
    cause, why = ("host-bound", ()) if has_more else _why_slower(view, late)
    caller = _caller(view, late, parts, usual_FW) if cause == "host-bound" else None
    if caller is None:
        whole = _of_iteration(view, late) if cause == "cpu-contention" else late
        focus = whole_rows(LAUNCHING, rows)
        return accuse(whole, cause, "other", focus, rows, view.settings.min_gain, (text, *why))
    before = "before" if late.reference == "baseline" else "on the peers"
    label = caller.focus.label
    where = f"The host is in {label} for {format_ms(caller.own_us)}; {before} {format_ms(caller.other_us)}."
    focus = msgspec.structs.replace(caller.focus, functions=tuple(rows))
    cause = "host-bound" if has_more else "python-on-critical-path"
    return accuse(late, cause, "other", focus, rows, view.settings.min_gain, (text, where))


def _of_iteration(view: View, late: Lateness) -> Lateness:
    """Express a lateness against whole iterations: these show by how much a lack of cores slows the worker."""
    excess_us = late.mean_us - late.reference_us
    return msgspec.structs.replace(late, mean_us=view.iteration_us, reference_us=view.iteration_us - excess_us)


def _launches(view: View, rows: Sequence[int], late: Lateness) -> tuple[float, float]:
    """Count launches per iteration on the accused, and on the reference; NaN where nothing tells."""
    members, places = list(late.workers), list(rows)
    count_W = view.fleet.count[places].sum(axis=0)
    if late.reference == "peers":
        usual_W = view.fleet.usual(count_W)
    else:
        phases = {view.fleet.keys[row].phase for row in rows}
        usual_W = view.then(lambda past: past.count[_same_rows(past, phases)].sum(axis=0))
    return float(count_W[members].mean()), float(usual_W[members].mean())


def _same_rows(fleet: Fleet, phases: set[Phase]) -> list[int]:
    return [row for phase in phases for row in launching_rows(fleet, phase)]


def _caller(view: View, late: Lateness, parts: Sequence[list[int]], usual_FW: Floats) -> Caller | None:
    """Find the function in which the host is longer by about as much, in the same part of the iteration; else None.

    Backward launches for what forward has recorded, on a thread without stacks: where only it takes longer as well, a
    function that accounts for forward's part accounts for both.
    """
    usual = usual_of(view, late.reference, host_us)
    caller = find_caller(view, late.workers, usual) if usual is not None else None
    if caller is None:
        return None
    called_in = phases_called_in(view, caller)
    excess_us: dict[Phase, float] = {}
    for rows in parts:
        more_RW = (view.fleet.critical_us[rows] - np.nan_to_num(usual_FW[rows]))[:, list(late.workers)]
        excess_us[view.fleet.keys[rows[0]].phase] = float(more_RW.mean(axis=1).sum())
    own_us = sum(excess for phase, excess in excess_us.items() if phase in called_in)
    follows = "forward" in called_in and excess_us.keys() - called_in <= {"backward"}
    whole_us = late.mean_us - late.reference_us
    return caller if own_us > 0 and caller.accounts_for(own_us if follows else whole_us, whole_us) else None


def _why_slower(view: View, late: Lateness) -> tuple[str, tuple[str, ...]]:
    """Choose the cause by whether the training thread's waits for a core explain that each launch takes longer."""
    queue_W = queued_share(view.fleet)
    usual_W = view.fleet.usual(queue_W) if late.reference == "peers" else view.then(queued_share)
    more = float(np.nan_to_num(queue_W - usual_W)[list(late.workers)].mean())
    if more * view.iteration_us < EXPLAINED_BY_QUEUE * (late.mean_us - late.reference_us):
        return "host-bound", ("Each launch takes longer: the host's cores are slower, or something beside it runs.",)
    return "cpu-contention", (f"Training threads wait {percent(more)} more of their time for a core.",)
